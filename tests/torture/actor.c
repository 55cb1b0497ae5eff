/* Interprets a script of system calls in one or several processes, one call at a time, and notes what each returned.
 *
 * actor SCRIPT NOTES PROCESS [SLOTS]: a line of SCRIPT is "process call a b c d name name". Processes take turns by a counter
 * in NOTES, a file in memory outside the file system under test. NOTES has the counter, the line to stop at, and from byte 64 on
 * a record of 32 bytes for each line. A record is written before the call (state 1) and after it (state 2).
 */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 12, PROCESSES = 16, LINES_MAX = 4096, DATA_MAX = 2 << 20 };
struct head { volatile uint32_t next, stop; };
struct record { int64_t result; int32_t error; uint32_t data; volatile uint32_t state; uint32_t pad[3]; };
struct line { int process; char call[20]; long a, b, c, d; char from[32], to[32]; };

static struct line lines[LINES_MAX];
static struct head *head;
static struct record *records;
static int count, me, slots[SLOTS], pids[PROCESSES];
static char **arguments;
static unsigned char data[DATA_MAX];

/* Byte `at` of the data that line `seed` writes; the judge has the same rule. */
static void fill(long seed, long bytes) {
    for (long at = 0; at < bytes; at++) data[at] = (seed * 37 + (at >> 4) * 11 + at) % 251 + 1;
}
static uint32_t digest(const unsigned char *bytes, long n) {
    uint32_t sum = 2166136261u;
    for (long i = 0; i < n; i++) sum = (sum ^ bytes[i]) * 16777619u;
    return sum;
}
/* Ends with the parent, which may have ended already. */
static void follow_parent(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == 1) _exit(96);
}
static void start_again(int process) {
    char number[12], list[SLOTS * 12] = "";
    snprintf(number, sizeof number, "%d", process);
    for (int i = 0; i < SLOTS; i++) sprintf(list + strlen(list), "%d,", slots[i]);
    execl(arguments[0], arguments[0], arguments[1], arguments[2], number, list, NULL);
    _exit(99);
}
static long lock(int file, short type, int command, long from, long bytes) {
    struct flock what = { .l_type = type, .l_whence = SEEK_SET, .l_start = from, .l_len = bytes };
    long result = fcntl(file, command, &what);
    return result < 0 || command != F_GETLK ? result : what.l_type;
}
static long asynchronous(int file, long offset, long bytes, int sync) {
    struct aiocb write = { .aio_fildes = file, .aio_offset = offset, .aio_buf = data, .aio_nbytes = bytes };
    const struct aiocb *list[1] = { &write };
    if (aio_write(&write) < 0) return -1;
    while (aio_error(&write) == EINPROGRESS) aio_suspend(list, 1, NULL);
    int error = aio_error(&write);
    long result = aio_return(&write);
    if (error || !sync) { errno = error; return result; }
    struct aiocb flush = { .aio_fildes = file };
    list[0] = &flush;
    if (aio_fsync(O_SYNC, &flush) < 0) return -2;
    while (aio_error(&flush) == EINPROGRESS) aio_suspend(list, 1, NULL);
    error = aio_error(&flush);
    if (aio_return(&flush) < 0) { errno = error; return -2; }
    return result;
}
static long mapped(int file, long offset, long bytes, int sync) {
    struct stat now;
    if (fstat(file, &now) < 0) return -1;
    if (offset + bytes > now.st_size) bytes = now.st_size - offset;
    if (bytes <= 0) return 0;
    unsigned char *map = mmap(NULL, offset + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) return -1;
    memcpy(map + offset, data, bytes);
    long start = offset & ~4095L;
    long result = sync ? msync(map + start, offset + bytes - start, MS_SYNC) : 0;
    munmap(map, offset + bytes);
    return result < 0 ? -2 : bytes;
}
static long stream(const char *name, long bytes, int sync) {
    FILE *file = fopen(name, "a");
    if (!file) return -1;
    long result = fwrite(data, 1, bytes, file);
    if (fflush(file)) result = -2;
    if (sync && fsync(fileno(file))) result = -3;
    return fclose(file) ? -4 : result;
}
static long sync_directory(const char *name) {
    int file = open(name, O_RDONLY | O_DIRECTORY);
    if (file < 0) return -1;
    long result = fsync(file);
    close(file);
    return result;
}
static long spawn(int process, int vforks, int from, int to) {
    pid_t pid = vforks ? vfork() : fork();
    if (pid == 0 && vforks) {
        if (from >= 0 && to >= 0) dup2(from, to);
        start_again(process);
    }
    if (pid == 0) {
        me = process;
        follow_parent();
        return 0;
    }
    pids[process] = pid;
    return pid < 0 ? -1 : 1;
}
static long await(int process) {
    int status = 0;
    return waitpid(pids[process], &status, 0) < 0 ? -1 : status;
}
static long put(long *slot_of, long result) {
    if (result >= 0) slots[*slot_of] = result;
    return result;
}

#define CALL(name, value) if (!strcmp(l->call, name)) return value
static long call_of(struct line *l, long number, struct record *note) {
    int file = l->a >= 0 && l->a < SLOTS ? slots[l->a] : -1, other = l->b >= 0 && l->b < SLOTS ? slots[l->b] : -1;
    int64_t from_offset = l->c, to_offset = l->d;
    struct stat now;
    struct iovec pieces[2] = { { data, l->b / 3 }, { data + l->b / 3, l->b - l->b / 3 } };
    long result;
    CALL("open", put(&l->a, open(l->from, l->b, (mode_t)l->c)));
    CALL("close", close(file));
    CALL("lseek", lseek(file, l->b, l->c));
    fill(number, DATA_MAX < l->b ? DATA_MAX : l->b > 0 ? l->b : 0);
    CALL("write", write(file, data, l->b));
    CALL("writev", writev(file, pieces, 2));
    CALL("pwrite", pwrite(file, data, l->b, l->c));
    CALL("pwritev2", pwritev2(file, pieces, 2, l->c, l->d));
    CALL("aio", asynchronous(file, l->c, l->b, l->d));
    CALL("mmap", mapped(file, l->c, l->b, l->d));
    CALL("stream", stream(l->from, l->b, l->d));
    CALL("dprintf", dprintf(file, "%.*s", (int)l->b, (char *)data));
    CALL("fsync", fsync(file));
    CALL("fdatasync", fdatasync(file));
    CALL("syncfs", syncfs(file));
    CALL("sync_file_range", sync_file_range(file, 0, 0, 7));
    CALL("dirsync", sync_directory(l->from));
    CALL("ftruncate", ftruncate(file, l->b));
    CALL("truncate", truncate(l->from, l->b));
    CALL("fallocate", fallocate(file, l->d, l->b, l->c));
    CALL("rename", rename(l->from, l->to));
    CALL("link", link(l->from, l->to));
    CALL("unlink", unlink(l->from));
    CALL("dup", put(&l->b, dup(file)));
    CALL("dup2", dup2(file, other));
    CALL("dup3", dup3(file, other, l->c));
    CALL("fdup", put(&l->b, fcntl(file, F_DUPFD, (int)l->c)));
    CALL("mkdir", mkdir(l->from, 0755));
    CALL("sendfile", sendfile(file, other, &from_offset, l->d));
    CALL("copy", copy_file_range(other, &from_offset, file, &to_offset, 3000, 0));
    CALL("setlk", lock(file, l->b, F_SETLK, l->c, l->d));
    CALL("setofd", lock(file, l->b, F_OFD_SETLK, l->c, l->d));
    CALL("getlk", lock(file, l->b, F_GETLK, l->c, l->d));
    CALL("flock", flock(file, l->b | LOCK_NB));
    CALL("fork", spawn(l->b, 0, -1, -1));
    CALL("vexec", spawn(l->b, 1, l->c < 0 ? -1 : slots[l->c], l->d < 0 ? -1 : slots[l->d]));
    CALL("wait", await(l->b));
    if (!strcmp(l->call, "read")) {
        result = l->c < 0 ? read(file, data, l->b) : pread(file, data, l->b, l->c);
        note->data = digest(data, result > 0 ? result : 0);
        return result;
    }
    if (!strcmp(l->call, "stat")) {
        result = l->a >= 0 ? fstat(file, &now) : stat(l->from, &now);
        note->data = result ? 0 : now.st_size * 8 + now.st_nlink;
        return result ? result : (long)(now.st_mode & 07777);
    }
    fprintf(stderr, "no such call: %s\n", l->call);
    _exit(98);
}
static void act(int number) {
    struct line *l = &lines[number];
    struct record *note = &records[number];
    note->state = 1;
    if (!strcmp(l->call, "exit") || !strcmp(l->call, "die") || !strcmp(l->call, "exec")) {
        note->state = 2;
        __sync_synchronize();
        head->next = number + 1;
        if (l->call[0] == 'd') raise(SIGKILL);
        if (!strcmp(l->call, "exit")) exit(l->b);
        start_again(me);
    }
    int forks = !strcmp(l->call, "fork");
    errno = 0;
    long result = call_of(l, number, note);
    if (forks && me == l->b) return;
    note->error = result < 0 ? errno : 0;
    note->result = result;
    __sync_synchronize();
    note->state = 2;
    __sync_synchronize();
    head->next = number + 1;
}

int main(int n, char **values) {
    arguments = values;
    FILE *script = fopen(values[1], "re");
    int notes = open(values[2], O_RDWR | O_CLOEXEC);
    struct line *l;
    while ((l = &lines[count], fscanf(script, "%d %19s %ld %ld %ld %ld %31s %31s", &l->process, l->call, &l->a, &l->b, &l->c,
                                      &l->d, l->from, l->to) == 8)) count++;
    fclose(script);
    head = mmap(NULL, 64 + count * sizeof *records, PROT_READ | PROT_WRITE, MAP_SHARED, notes, 0);
    close(notes);
    if (head == MAP_FAILED) return 97;
    records = (void *)((char *)head + 64);
    me = atoi(values[3]);
    memset(slots, -1, sizeof slots);
    char *list = n > 4 ? values[4] : NULL;
    for (int i = 0; list && i < SLOTS; i++) slots[i] = strtol(list, &list, 10), list++;
    if (me) follow_parent();
    while (head->next < (uint32_t)count) {
        int next = head->next;
        if (next < (int)head->stop && lines[next].process == me) act(next);
        else usleep(20);
    }
    return 0;
}
