/* held.h - versions of the glibc symbols that the core requires. The build includes it before every source of the core.
 *
 * Rules:
 * 1. The core runs with glibc 2.28 and newer, as torch's wheels do, wherever it was compiled. Since then, glibc has
 *    moved some functions into another library. The core requires their old symbols, which every glibc still has.
 * 2. The core calls no function that only a newer glibc has as a symbol (fstat, stat). The strtol of C23 is replaced by
 *    the old one, which reads our numbers alike.
 * `csrc/objects.py` detects omissions in this list. */
#if defined(__gnu_linux__) && defined(__x86_64__)       /* no header here: each source first defines _GNU_SOURCE */
#define TD_HELD_AS(name, old) __asm__(".symver " #name "," #old "@GLIBC_2.2.5")
#elif defined(__gnu_linux__) && defined(__aarch64__)
#define TD_HELD_AS(name, old) __asm__(".symver " #name "," #old "@GLIBC_2.17")
#endif

#ifdef TD_HELD_AS
#define TD_HELD(name) TD_HELD_AS(name, name)
TD_HELD(dlclose);
TD_HELD(dlopen);
TD_HELD(dlsym);
TD_HELD(pthread_attr_setstacksize);
TD_HELD(pthread_create);
TD_HELD(pthread_key_create);
TD_HELD(pthread_setspecific);
TD_HELD(pthread_sigmask);
TD_HELD_AS(__isoc23_strtol, strtol);
#endif
