/* What threads and signal handlers do with followed files, for t_20_run_effects.sh. run_threads CASE DIRECTORY prints what it has seen. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[4096], name[4200];
static int file;
static volatile long cleaned, handled;

static int opened(int number) {
    snprintf(name, sizeof name, "%s/f%d", path, number);
    return open(name, O_RDWR | O_CREAT, 0644);
}
static void clean(void *count) { (void)count; cleaned++; }
static void *write_for_ever(void *where) {
    int own = (int)(long)where;
    struct iovec pieces[2] = { { "01234", 5 }, { "56789", 5 } };
    pthread_cleanup_push(clean, NULL);
    for (;;) {
        if (write(own, "0123456789", 10) < 0 || writev(own, pieces, 2) < 0 || pwrite(own, "ab", 2, 0) < 0) abort();
        if (fsync(own) < 0) abort();
    }
    pthread_cleanup_pop(1);
    return NULL;
}
static void *write_a_pipe(void *where) {
    static char data[1 << 20];
    pthread_cleanup_push(clean, NULL);
    for (;;) if (write((int)(long)where, data, sizeof data) < 0) abort();
    pthread_cleanup_pop(1);
    return NULL;
}
static void cancelled(void *(*act)(void *), int where) {
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, act, (void *)(long)where);
    usleep(1000 + rand() % 3000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    if (result != PTHREAD_CANCELED) puts("not cancelled");
}
static void end(int own) {
    if (write(own, "end", 3) != 3 || fsync(own)) perror("the end");
}
/* bug: a thread that was cancelled in a write took a lock with it, or the process. */
static void cancel(void) {
    int ends[2];
    file = opened(0);
    for (int i = 0; i < 50; i++) cancelled(write_for_ever, file);
    end(file);
    if (pipe(ends)) perror("pipe");
    for (int i = 0; i < 5; i++) cancelled(write_a_pipe, ends[1]);
    printf("%ld cleaned\n", cleaned);
}
/* bug: a handler that opened a file while malloc was interrupted waited for ever. */
static void handle(int number) {
    int before = errno, other = opened(1 + number % 3);
    if (write(other, "x", 1) != 1 || fsync(other)) abort();
    close(other);
    if (write(file, "y", 1) != 1) abort();
    handled++;
    errno = before;
}
static void handlers(void) {
    struct itimerval often = { { 0, 5000 }, { 0, 5000 } }, never = { { 0, 0 }, { 0, 0 } };
    struct stat now;
    long written = 0;
    file = opened(0);
    write(file, "0", 1);
    signal(SIGALRM, handle);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 100000; i++) {
        void *all[20];
        for (int j = 0; j < 20; j++) all[j] = malloc(10 + i * j % 3000);
        for (int j = 0; j < 20; j++) free(all[j]);
        if (i % 100 == 0) written += write(file, "main", 4) == 4 && fsync(file) == 0;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    fsync(file);
    fstat(file, &now);
    printf("%ld written, %s, %s\n", written, handled > 10 ? "interrupted" : "hardly interrupted",
           now.st_size == 1 + 4 * written + handled ? "all is there" : "something is missing");
}

/* bug: a child that was forked while another thread opened or locked a file waited for ever, or kept another limit of descriptors. */
static volatile int is_over;
static void *open_for_ever(void *number) {
    char own[4200];
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
    for (int i = 0; !is_over; i++) {
        snprintf(own, sizeof own, "%s/f%ld-%d", path, (long)number, i % 100);
        int opened = open(own, O_RDWR | O_CREAT, 0644);
        if (opened < 0 || write(opened, "data", 4) != 4 || fcntl(opened, F_SETLK, &lock) || fsync(opened)) abort();
        close(opened);
        if (i % 10 == 9) unlink(own);
    }
    return NULL;
}
static int in_child(int number, rlim_t limit) {
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1 };
    struct rlimit now;
    char *text = malloc(1000);
    getrlimit(RLIMIT_NOFILE, &now);
    if (now.rlim_cur != limit) return 1;
    snprintf(name, sizeof name, "%s/f-child%d", path, number % 10);
    int opened = open(name, O_RDWR | O_CREAT, 0644);
    if (opened < 0 || write(opened, text, 10) != 10 || fcntl(opened, F_SETLK, &lock) || fsync(opened) || close(opened)) return 2;
    free(text);
    if (chroot(path)) return 3;
    return open("/f-inside", O_WRONLY | O_CREAT, 0644) < 0 ? 4 : 0;
}
static void forks(void) {
    pthread_t threads[3];
    struct rlimit limit;
    int sum = 0, hung = 0;
    getrlimit(RLIMIT_NOFILE, &limit);
    /* The library opens its area while the first ones are forked. */
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], NULL, open_for_ever, (void *)i);
    for (int i = 0; i < 300; i++) {
        int status = 0, ended = 0;
        pid_t child = fork();
        if (child == 0) _exit(in_child(i, limit.rlim_cur));
        for (int wait = 0; !ended && wait < 10000; wait++) {
            ended = waitpid(child, &status, WNOHANG);
            if (!ended) usleep(1000);
        }
        if (!ended) { hung++; kill(child, SIGKILL); waitpid(child, &status, 0); break; }
        sum += WIFEXITED(status) ? WEXITSTATUS(status) : 100;
    }
    is_over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    printf("children hung: %d, sum of their ends: %d\n", hung, sum);
}

/* bug: SIGSYS killed a program that filters its system calls. cause: the library made others than the program. */
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
static void filters(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write), ALLOW(SYS_pwrite64), ALLOW(SYS_fsync), ALLOW(SYS_close), ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    int first = opened(0), closed = opened(1);
    if (write(first, "first", 5) != 5 || fsync(first) || write(closed, "closed", 6) != 6 || fsync(closed)) abort();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) abort();
    if (write(first, "second", 6) != 6 || pwrite(first, "F", 1, 0) != 1 || fsync(first) || close(closed)) _exit(2);
    if (write(1, "filtered\n", 9) != 9) _exit(3);
    _exit(0);
}

int main(int count, char **values) {
    (void)count;
    strcpy(path, values[2]);
    if (!strcmp(values[1], "cancel")) cancel();
    if (!strcmp(values[1], "handlers")) handlers();
    if (!strcmp(values[1], "forks")) forks();
    if (!strcmp(values[1], "filters")) filters();
    return 0;
}
