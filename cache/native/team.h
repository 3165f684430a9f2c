/* Threads that share work.

Work is a sequence of phases, and a phase is a number of tasks. Each thread has a part of the tasks, close in memory; a
thread without tasks takes those of others. The thread that finishes the last task of a phase begins the next phase, so
a thread that the system has suspended delays the others only if it has a task. A thread without work checks for more
for a short time, then sleeps so that other processes can use the CPU. */

#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MOST_THREADS = 256 };
enum { LOOKS = 1500 }; /* before a thread sleeps: about 30 microseconds, longer than most phases of a decoding step */

/* Work of the threads. next: begins the next phase and returns its number of tasks; 0: the work is finished. */
typedef struct {
    void *of;
    int (*next)(void *of);
    void (*run)(void *of, int task, int thread);
} Work;

/* Each number that several threads change has its own cache line, so that it does not slow down access to others. */
typedef struct {
    _Alignas(64) atomic_int left; /* tasks of a thread's part that are not taken yet; 0 or less: none */
} Portion;

typedef struct {
    _Alignas(64) atomic_uint state;  /* twice the number of the phase, plus 1 if the work is finished */
    _Alignas(64) atomic_int undone; /* unfinished tasks of the phase */
    _Alignas(64) atomic_int asleep;
    atomic_int threads;
    int tasks; /* of the phase; read, like `work`, only by a thread that has a task */
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

/* Takes a task for this thread and returns it; -1: there is none. */
static int take_task(int thread, int threads) {
    for (int i = 0; i < threads; i++) {
        int part = (thread + i) % threads, left;
        if (atomic_load(&team.parts[part].left) > 0 && (left = atomic_fetch_sub(&team.parts[part].left, 1)) > 0)
            return (long)team.tasks * (part + 1) / team.threads - left;
    }
    return -1;
}

/* Runs tasks. Thread 0 is the caller's; for it, this function returns when the work is finished. */
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

/* A forked process does not have the threads. */
static void forget_threads(void) { team = (Team)NEW_TEAM; }

/* Reserves the team until `share` ends, with at least `threads` threads if they can be started. Returns the number of
   threads that may call `run`; 0: the team is in use. */
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

/* Does the work. threads: from `gather`; 0: use only the calling thread. */
static void share(Work work, int threads) {
    for (int tasks; !threads && (tasks = work.next(work.of));)
        while (tasks--) work.run(work.of, tasks, 0);
    if (!threads) return;
    team.work = work;
    begin_phase();
    take_part(0);
    dismiss(threads);
}
