/* held.h - the build includes it before every source of the core: which symbols it asks of glibc.
 *
 * Rules:
 * 1. The core runs with glibc 2.28 and newer, as torch's wheels do, wherever it was compiled. Where glibc has moved a
 *    function into another library since, the symbol of old is asked for, which every glibc still has.
 * 2. What a newer glibc alone has as a symbol (fstat, stat) is not called. Its strtol of C23 reads our numbers as the old one.
 * `csrc/objects.py` finds what this list lacks. */
#if defined(__gnu_linux__) && defined(__x86_64__)       /* no header yet: sources say which names they want of it */
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
