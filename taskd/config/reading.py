"""Parsing of settings: text in the environment, or values in a dict, become typed values.

Rules:

1. A value of a wrong kind, out of range or unknown raises `ConfigError`. The error states what was found, what was
   expected, and the remedy. The value of a secret is never shown.
2. An empty variable counts as unset, and so does a key whose value is None. Scripts pass both on without meaning a
   value.
3. A key of the dict comes before the variable, and the variable before the pod's annotation. A value that is not used
   is not checked.
4. A dict may hold numbers and switches as such, or as the text that the environment would hold.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from taskd.config import settings
from taskd.config.schema import Setting, unknown_names
from taskd.core.policy import SelfCheck, Strategy
from taskd.errors import ConfigError

_T = TypeVar("_T")
_MAX_SHOWN_CHARS = 80
_STRATEGIES = tuple(strategy.value for strategy in Strategy)


@dataclass(frozen=True)
class Annotation:
    """An annotation of the pod, and its place as text for messages."""

    value: str
    place: str


@dataclass(frozen=True)
class Source:
    """Source of settings by name: the keys of a dict, then an environment, then the annotations of a pod."""

    env: Mapping[str, str]
    keys: Mapping[str, object] = field(default_factory=dict)
    annotations: Mapping[str, Annotation] = field(default_factory=dict)

    def gives(self, setting: Setting) -> bool:
        """Return whether a key or a variable holds the setting."""
        return self._given(setting) is not None

    def chosen(self, setting: Setting) -> bool:
        """Return whether a key, a variable or an annotation gives the setting."""
        return self.gives(setting) or self._annotation(setting) is not None

    def text(self, setting: Setting) -> str | None:
        """Return the text of a setting, or None if it is not given and has no default."""
        return self._read(setting, _text)

    def whole(self, setting: Setting) -> int:
        """Return the whole number of a setting that is required or has a default."""
        return self._required(setting, self.whole_or_none(setting))

    def whole_or_none(self, setting: Setting) -> int | None:
        """Return the whole number of a setting, or None if it is not given and has no default."""
        value = self._read(setting, _whole)
        return self._bounded(setting, value)

    def seconds(self, setting: Setting) -> float:
        """Return the seconds of a setting that is required or has a default."""
        return self._required(setting, self.seconds_or_none(setting))

    def seconds_or_none(self, setting: Setting) -> float | None:
        """Return the seconds of a setting, or None if it is not given and has no default."""
        return self._bounded(setting, self._read(setting, _seconds))

    def factor(self, setting: Setting) -> float:
        """Return the number of a setting that is required or has a default."""
        return self._required(setting, self._bounded(setting, self._read(setting, _seconds)))

    def switch(self, setting: Setting) -> bool:
        """Return whether a setting is on."""
        return self._required(setting, self._read(setting, _switch))

    def allows(self, setting: Setting) -> bool:
        """Return whether a setting is `allow`, not `refuse`."""
        return self._required(setting, self._read(setting, _allows))

    def path(self, setting: Setting) -> Path | None:
        """Return the absolute path of a setting, or None if it is not given and has no default."""
        return self._read(setting, _path)

    def required_path(self, setting: Setting) -> Path:
        """Return the absolute path of a setting that is required or has a default."""
        return self._required(setting, self._read(setting, _path))

    def modules(self, setting: Setting) -> tuple[str, ...]:
        """Return the module names of a setting, each once, in order."""
        return self._read(setting, _modules) or ()

    def strategies(self, setting: Setting) -> tuple[Strategy, ...]:
        """Return the strategies of a setting, in the order in which they are tried. `EXIT` is always the last."""
        words = self._required(setting, self._read(setting, _some_words))
        unknown = unknown_names(words, _STRATEGIES)
        if unknown:
            advice = ", ".join(name.advice for name in unknown)
            raise self.refuse(setting, self._raw(setting), f"{setting.expected} (unknown: {advice})")
        return tuple(strategy for strategy in Strategy if strategy.value in words or strategy is Strategy.EXIT)

    def self_check(self, setting: Setting) -> SelfCheck:
        """Return when a job proves that it can continue exactly after a fault."""
        return self._required(setting, self._read(setting, _self_check))

    def command(self, setting: Setting) -> str:
        """Return the command line of a setting; empty if none is given."""
        return self._read(setting, _command) or ""

    def label(self, setting: Setting) -> str:
        """Return the name under which this source holds a setting."""
        if setting.key is not None and self.keys.get(setting.key) is not None:
            return f"{setting.key!r} of init_taskd_manager"
        annotation = None if self.gives(setting) else self._annotation(setting)
        return setting.name if annotation is None else annotation.place

    def refuse(self, setting: Setting, found: object, expected: str | None = None) -> ConfigError:
        """Return the error for a wrong value, with the name under which this source holds the setting."""
        shown = "a value (not shown)" if setting is settings.SECRET else _shown(found)
        remedy = f"leave it out for {setting.default}" if setting.default else "correct it or leave it out"
        return ConfigError(f"{self.label(setting)}: found {shown}, expected {expected or setting.expected}; {remedy}")

    def _raw(self, setting: Setting) -> object:
        given, annotation = self._given(setting), self._annotation(setting)
        if given is not None:
            return given
        return setting.default if annotation is None else annotation.value

    def _given(self, setting: Setting) -> object:
        if setting.key is not None and self.keys.get(setting.key) is not None:
            return self.keys[setting.key]
        return (self.env.get(setting.variable) or None) if setting.variable is not None else None

    def _annotation(self, setting: Setting) -> Annotation | None:
        return None if setting.annotation is None else self.annotations.get(setting.annotation)

    def _read(self, setting: Setting, parse: Callable[[object], _T | None]) -> _T | None:
        """Return the parsed value. `parse` returns None for a value of a wrong kind, which raises `ConfigError`."""
        raw = self._raw(setting)
        if raw is None:
            return None
        value = parse(raw)
        if value is None:
            raise self.refuse(setting, raw)
        return value

    def _bounded(self, setting: Setting, value: _T | None) -> _T | None:
        if isinstance(value, int | float) and not setting.minimum <= value <= setting.maximum:
            raise self.refuse(setting, value)
        return value

    def _required(self, setting: Setting, value: _T | None) -> _T:
        if value is None:
            raise ConfigError(f"{setting.all_names} is missing, expected {setting.expected}; add it: {setting.meaning}")
        return value


def _text(raw: object) -> str | None:
    return raw.strip() or None if isinstance(raw, str) else None


def _whole(raw: object) -> int | None:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    digits = raw.strip() if isinstance(raw, str) else ""
    return int(digits) if digits.removeprefix("-").isdecimal() and digits.isascii() and len(digits) < 20 else None


def _seconds(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _switch(raw: object) -> bool | None:
    if isinstance(raw, bool):
        return raw
    return {"on": True, "off": False}.get(raw.strip()) if isinstance(raw, str) else None


def _self_check(raw: object) -> SelfCheck | None:
    return next((one for one in SelfCheck if isinstance(raw, str) and raw.strip() == one.value), None)


def _allows(raw: object) -> bool | None:
    return {"allow": True, "refuse": False}.get(raw.strip()) if isinstance(raw, str) else None


def _path(raw: object) -> Path | None:
    if not isinstance(raw, str | Path) or "\0" in str(raw):
        return None
    path = Path(raw)
    return path if path.is_absolute() else None


def _words(raw: object) -> tuple[str, ...] | None:
    items = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        return None
    return tuple(dict.fromkeys(item.strip() for item in items if item.strip()))


def _modules(raw: object) -> tuple[str, ...] | None:
    words = _words(raw)
    if words is None or not all(part.isidentifier() for word in words for part in word.split(".")):
        return None
    return words


def _some_words(raw: object) -> tuple[str, ...] | None:
    return _words(raw) or None


def _command(raw: object) -> str | None:
    return raw.strip() if isinstance(raw, str) and "\0" not in raw else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"
