/* The threads of a pass: how they share work, and where they wait for each other.

OpenMP starts the threads. Its own barriers put a thread to sleep at once when there are more of its threads in the
process than processors, even if the others do nothing, and there are as soon as two threads have ever run a parallel
region: waking up 300 times took a fifth of a pass or more. Here a thread looks for a while whether the others have come, and
sleeps then, so that others can use its processor. */

#pragma once
#include <stdatomic.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* How often to look before sleeping: few times, as another process may need the processor, and more with each wait in
   which that was enough. */
enum { FEWEST_LOOKS = 400, MOST_LOOKS = 3000, MORE_LOOKS = 200 };

/* All zero before the first meeting. Each number in a cache line of its own, where threads do not disturb each other. */
typedef struct {
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_int round;
    _Alignas(64) atomic_int asleep;
    _Alignas(64) atomic_int next; /* what is handed out */
} Meeting;

/* What a thread knows of the others. looks: of its next wait */
typedef struct {
    Meeting *meeting;
    int thread, threads, looks;
} Team;

static inline void pause_shortly(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static inline void sleep_while(atomic_int *number, int value) {
#ifdef __linux__
    syscall(SYS_futex, number, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); /* at once back where it is another value */
#else
    (void)number, (void)value;
    sched_yield();
#endif
}

static inline void wake_all(atomic_int *number) {
#ifdef __linux__
    syscall(SYS_futex, number, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
#else
    (void)number;
#endif
}

/* Wait for all threads. first: what `handed_out` gives first from then on, the same for all. */
static void meet_before(Team *team, int first) {
    Meeting *at = team->meeting;
    int round = atomic_load_explicit(&at->round, memory_order_relaxed); /* nobody changes it before this one arrives */
    if (atomic_fetch_add(&at->arrived, 1) + 1 == team->threads) {
        atomic_store_explicit(&at->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&at->next, first, memory_order_relaxed);
        atomic_store(&at->round, round + 1);
        if (atomic_load(&at->asleep)) wake_all(&at->round);
        return;
    }
    for (int look = 0; look < team->looks; look++) {
        if (atomic_load_explicit(&at->round, memory_order_acquire) != round) {
            if (team->looks < MOST_LOOKS) team->looks += MORE_LOOKS;
            return;
        }
        pause_shortly();
    }
    team->looks = FEWEST_LOOKS;
    atomic_fetch_add(&at->asleep, 1);
    while (atomic_load(&at->round) == round) sleep_while(&at->round, round);
    atomic_fetch_sub(&at->asleep, 1);
}

static inline void meet(Team *team) { meet_before(team, 0); }

/* The next task of those that are handed out one by one. */
static inline int handed_out(Team *team) { return atomic_fetch_add_explicit(&team->meeting->next, 1, memory_order_relaxed); }

/* Where the part of a thread begins among `count` tasks that are shared evenly; it ends where the next one's begins. */
static inline long part_of(long count, int thread, int threads) { return count * thread / threads; }

#define FOR_PART(i, count, team) \
    for (long i = part_of(count, (team)->thread, (team)->threads); i < part_of(count, (team)->thread + 1, (team)->threads); i++)
