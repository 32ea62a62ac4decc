"""A small Llama on Python's own text with TRL's SFTTrainer, as its documentation teaches."""

import codecs
import this  # its text is the data

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from tests.scripts import diary
from tests.trainers.programs import moments
from tests.trainers.programs.hf_told import Moments, Watched, finish, into_backward

if not moments.PLAIN:
    from taskd.hf import TaskdCallback, resilient

TEXT = codecs.decode(this.s, "rot13") * 3
TEXTS = [TEXT[at * 13 : at * 13 + 20 + at % 7] for at in range(70)]


class Trained(Watched, SFTTrainer):
    """The trainer with records of its progress."""


tokens = models.BPE(vocab={chr(number): number for number in range(128)}, merges=[])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(tokens), eos_token="\x00", pad_token="\x01")
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, attention_dropout=0.1, **sizes))
model.model.layers[0].register_forward_hook(into_backward)
trainer = Trained(
    model=model,
    args=SFTConfig(
        output_dir=str(diary.FOLDER / "out"),
        use_cpu=True,
        bf16=False,
        ddp_backend="gloo",
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=3e-3,
        logging_steps=3,
        eval_strategy="steps",
        eval_steps=5,
        save_steps=5,
        report_to=[],
        disable_tqdm=True,
        seed=5,
        max_length=32,
        gradient_checkpointing=False,
    ),
    processing_class=tokenizer,
    train_dataset=Dataset.from_dict({"text": TEXTS[:58]}),
    eval_dataset=Dataset.from_dict({"text": TEXTS[58:]}),
    callbacks=[Moments(), *([] if moments.PLAIN else [TaskdCallback()])],
)
if moments.PLAIN:
    result = trainer.train()
else:
    with resilient(trainer):
        result = trainer.train()
finish(trainer, result)
