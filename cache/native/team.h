/* Threads that share work.

Work is a row of phases, and a phase is a number of tasks. Each thread has a part of them, tasks that lie together in memory, and
takes those of others when it has none. A phase ends when its tasks are done, and who does the last one begins the next phase: a
thread that another process keeps from its processor is waited for only if it has a task. Threads look for a while whether
there is more to do, and sleep then, so that others can use the processor. */

#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MOST_THREADS = 256 };
enum { LOOKS = 1500 }; /* before a thread sleeps: some 30 microseconds, longer than most phases of a step of decoding */

/* What threads do. next: begins the next phase and gives how many tasks it has; 0: the work is over. */
typedef struct {
    void *of;
    int (*next)(void *of);
    void (*run)(void *of, int task, int thread);
} Work;

/* Numbers that all threads change are in a cache line of their own, where they do not disturb others. */
typedef struct {
    _Alignas(64) atomic_int left; /* tasks of a thread's part that nobody has taken; 0 or less: none */
} Portion;

typedef struct {
    _Alignas(64) atomic_uint state;  /* twice the number of the phase, and 1 where the work is over */
    _Alignas(64) atomic_int undone; /* tasks of the phase */
    _Alignas(64) atomic_int asleep;
    atomic_int threads;
    int tasks; /* of the phase; as the work only read by a thread that has a task */
    Work work;
    Portion parts[MOST_THREADS];
    pthread_mutex_t in_use, sleeping;
    pthread_cond_t begun;
} Team;

#define NEW_TEAM {.threads = 1, .in_use = PTHREAD_MUTEX_INITIALIZER, .sleeping = PTHREAD_MUTEX_INITIALIZER, .begun = PTHREAD_COND_INITIALIZER}
static Team team = NEW_TEAM;

static inline void pause_shortly(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static void begin_phase(void) {
    int tasks = team.work.next(team.work.of);
    unsigned state = (atomic_load(&team.state) | 1) + 1; /* of the next phase */
    team.tasks = tasks;
    atomic_store(&team.undone, tasks);
    for (long i = 0; i < team.threads && tasks; i++)
        atomic_store(&team.parts[i].left, tasks * (i + 1) / team.threads - tasks * i / team.threads);
    atomic_store(&team.state, tasks ? state : state + 1);
    if (!atomic_load(&team.asleep)) return;
    pthread_mutex_lock(&team.sleeping);
    pthread_cond_broadcast(&team.begun);
    pthread_mutex_unlock(&team.sleeping);
}

/* Gives a task that is this thread's from then on; -1: there is none. */
static int take_task(int thread, int threads) {
    for (int i = 0; i < threads; i++) {
        int part = (thread + i) % threads, left;
        if (atomic_load(&team.parts[part].left) > 0 && (left = atomic_fetch_sub(&team.parts[part].left, 1)) > 0)
            return (long)team.tasks * (part + 1) / team.threads - left;
    }
    return -1;
}

/* thread: 0: of the caller, which comes back when the work is over */
static void take_part(int thread) {
    for (int looks = 0, task;;) {
        unsigned state = atomic_load(&team.state);
        if ((task = take_task(thread, team.threads)) >= 0) {
            team.work.run(team.work.of, task, thread);
            if (atomic_fetch_sub(&team.undone, 1) == 1) begin_phase();
            looks = 0;
            continue;
        }
        if (thread == 0 && state % 2) return;
        while (looks < LOOKS && atomic_load(&team.state) == state) looks++, pause_shortly();
        if (looks < LOOKS) continue;
        pthread_mutex_lock(&team.sleeping);
        atomic_fetch_add(&team.asleep, 1);
        while (atomic_load(&team.state) == state) pthread_cond_wait(&team.begun, &team.sleeping);
        atomic_fetch_sub(&team.asleep, 1);
        pthread_mutex_unlock(&team.sleeping);
        looks = 0;
    }
}

static void *stay(void *thread) {
    take_part((intptr_t)thread);
    return NULL;
}

/* A fork has none of the threads. */
static void forget_threads(void) { team = (Team)NEW_TEAM; }

/* Reserves the team, with so many threads at least if they can be started, until `share` ends. Gives how many may call `run`;
   0: others have the team. */
static int gather(int threads) {
    if (pthread_mutex_trylock(&team.in_use)) return 0;
    if (team.threads == 1 && threads > 1) pthread_atfork(NULL, NULL, forget_threads);
    for (pthread_t made; team.threads < threads && team.threads < MOST_THREADS; team.threads++) {
        if (pthread_create(&made, NULL, stay, (void *)(intptr_t)team.threads)) break;
        pthread_detach(made);
    }
    return team.threads;
}

static void dismiss(int threads) {
    if (threads) pthread_mutex_unlock(&team.in_use);
}

/* threads: 0: the work is done in this thread alone. */
static void share(Work work, int threads) {
    for (int tasks; !threads && (tasks = work.next(work.of));)
        while (tasks--) work.run(work.of, tasks, 0);
    if (!threads) return;
    team.work = work;
    begin_phase();
    take_part(0);
    dismiss(threads);
}
