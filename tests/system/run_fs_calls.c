/* All kinds of calls on files below a directory: what each has come to. The output is the same on every file system. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

extern char **environ;
static char root[2048];

/* A path below the directory; a few at once. */
static const char *p(const char *rest) {
    static __thread char name[8][4096];
    static __thread int next;
    next = (next + 1) % 8;
    snprintf(name[next], sizeof name[next], "%s/%s", root, rest);
    return name[next];
}

static void said(const char *what, long result) {
    printf("%s: %ld%s%s\n", what, result, result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : "");
    errno = 0;
}
#define SAY(call) said(#call, (long)(call))

static void show(const char *what, const char *path) {
    struct stat st;
    if (lstat(path, &st) < 0) {
        said(what, -1);
        return;
    }
    printf("%s: mode %o links %ld size %ld uid %d blksize %ld\n", what, st.st_mode, S_ISDIR(st.st_mode) ? 0 : (long)st.st_nlink,
           S_ISDIR(st.st_mode) ? 0 : (long)st.st_size, (int)st.st_uid, (long)st.st_blksize);
}

static void content(const char *what, int fd) {
    char bytes[256];
    ssize_t count = pread(fd, bytes, sizeof bytes - 1, 0);
    if (count < 0) {
        said(what, -1);
        return;
    }
    bytes[count] = 0;
    for (ssize_t i = 0; i < count; i++)
        if (bytes[i] == 0) bytes[i] = '.';
    printf("%s: %zd \"%s\"\n", what, count, bytes);
}

static void files(void) {
    char bytes[64];
    int fd = open(p("file"), O_RDWR | O_CREAT | O_EXCL, 0666);
    SAY(fd >= 0);
    SAY(open(p("file"), O_RDWR | O_CREAT | O_EXCL, 0666));
    SAY(write(fd, "hello world", 11));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(lseek(fd, -5, SEEK_END));
    SAY(read(fd, bytes, 5));
    SAY(memcmp(bytes, "world", 5));
    SAY(read(fd, bytes, 5));
    SAY(lseek(fd, -1, SEEK_SET));
    SAY(lseek(fd, 3, 99));
    SAY(pwrite(fd, "HE", 2, 0));
    SAY(pwrite(fd, "x", 1, -1));
    SAY(lseek(fd, 100, SEEK_SET));
    SAY(write(fd, "far", 3));
    content("after a hole", fd);
    struct iovec parts[3] = {{"ab", 2}, {"", 0}, {"cdef", 4}};
    SAY(writev(fd, parts, 3));
    SAY(pwritev(fd, parts, 3, 20));
    SAY(pwritev2(fd, parts, 3, 40, RWF_DSYNC));
    SAY(pwritev2(fd, parts, 3, -1, 0));
    char left[3], right[5];
    struct iovec into[2] = {{left, 3}, {right, 5}};
    SAY(preadv(fd, into, 2, 20));
    SAY(memcmp(left, "abc", 3) || memcmp(right, "def", 3));
    SAY(fsync(fd));
    SAY(fdatasync(fd));
    SAY(sync_file_range(fd, 0, 0, 7));
    SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    SAY(isatty(fd));
    SAY(ftruncate(fd, 15));
    SAY(ftruncate(fd, -1));
    content("truncated", fd);
    SAY(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 100000));
    SAY(fallocate(fd, 0, 0, 20));
    SAY(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 5));
    SAY(posix_fallocate(fd, 0, 30));
    SAY(posix_fallocate(fd, -1, 30));
    content("allocated", fd);
    struct stat st;
    SAY(fstat(fd, &st));
    SAY(st.st_size);
    SAY(fchmod(fd, 0640));
    SAY(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK | 0100000));
    SAY(fcntl(fd, F_GETFD));
    SAY(fcntl(fd, F_SETFD, FD_CLOEXEC));
    SAY(fcntl(fd, F_GETFD));
    struct timespec times[2] = {{1000, 5}, {2000, 7}};
    SAY(futimens(fd, times));
    SAY(fstat(fd, &st));
    printf("times %ld.%ld %ld.%ld\n", st.st_atim.tv_sec, st.st_atim.tv_nsec, st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    SAY(close(fd));
    SAY(close(fd));
    SAY(read(fd, bytes, 1));
    show("file", p("file"));
    int reads = open(p("file"), O_RDONLY), writes = open(p("file"), O_WRONLY);
    SAY(write(reads, "x", 1));
    SAY(read(writes, bytes, 1));
    SAY(ftruncate(reads, 0));
    SAY(lseek(reads, 0, SEEK_DATA) >= 0);
    SAY(lseek(reads, 10000, SEEK_HOLE));
    close(reads);
    close(writes);
    SAY(truncate(p("file"), 4));
    SAY(truncate(p("none"), 4));
    int appends = open(p("file"), O_WRONLY | O_APPEND);
    SAY(pwrite(appends, "tail", 4, 0));
    SAY(lseek(appends, 0, SEEK_CUR));
    SAY(write(appends, "end", 3));
    SAY(lseek(appends, 0, SEEK_CUR));
    SAY(fcntl(appends, F_SETFL, 0));
    SAY(lseek(appends, 0, SEEK_CUR));
    SAY(pwrite(appends, "T", 1, 0));
    close(appends);
    SAY(open(p("file"), O_RDONLY | O_DIRECTORY));
    SAY(open(p("file/x"), O_RDONLY));
    SAY(open(p("none"), O_RDONLY));
    SAY(open(p(""), O_RDWR));
    int trunc = open(p("file"), O_RDWR | O_TRUNC);
    content("emptied", trunc);
    close(trunc);
    int nameless = open(root, O_TMPFILE | O_RDWR, 0600);
    SAY(write(nameless, "tmp", 3));
    char proc[64];
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", nameless);
    SAY(linkat(AT_FDCWD, proc, AT_FDCWD, p("named"), AT_SYMLINK_FOLLOW));
    close(nameless);
    show("named", p("named"));
}

static void names(void) {
    char target[100] = {0};
    SAY(mkdir(p("d"), 0777));
    SAY(mkdir(p("d"), 0777));
    SAY(mkdir(p("none/d"), 0777));
    SAY(mkdir(p("d/e/"), 0700));
    SAY(close(creat(p("d/a"), 0644)));
    SAY(link(p("d/a"), p("d/b")));
    SAY(link(p("d/a"), p("d/b")));
    show("linked", p("d/a"));
    SAY(symlink("a", p("d/l")));
    SAY(symlink("/etc", p("d/out")));
    SAY(symlink("..", p("d/up")));
    SAY(symlink("loop", p("d/loop")));
    SAY(readlink(p("d/l"), target, sizeof target));
    printf("target %s\n", target);
    SAY(readlink(p("d/l"), target, 0));
    SAY(readlink(p("d/a"), target, sizeof target));
    SAY(access(p("d/out/passwd"), R_OK));
    SAY(access(p("d/../../"), F_OK));
    SAY(access(p("d/up/d/a"), R_OK));
    SAY(access(p("d/loop"), R_OK));
    SAY(access(p("d/a"), X_OK));
    SAY(faccessat(AT_FDCWD, p("d/a"), W_OK, AT_EACCESS));
    SAY(euidaccess(p("d/none"), W_OK));
    show("link", p("d/l"));
    SAY(rename(p("d/a"), p("d/c")));
    SAY(rename(p("d/a"), p("d/c")));
    SAY(rename(p("d/c"), p("d/e")));
    SAY(rename(p("d"), p("d/e/x")));
    SAY(renameat2(AT_FDCWD, p("d/b"), AT_FDCWD, p("d/c"), RENAME_NOREPLACE));
    SAY(renameat2(AT_FDCWD, p("d/b"), AT_FDCWD, p("d/e"), RENAME_EXCHANGE));
    show("exchanged", p("d/b"));
    SAY(rmdir(p("d")));
    SAY(rmdir(p("d/c")));
    SAY(unlink(p("d/b")));
    SAY(rmdir(p("d/b")));
    SAY(unlink(p("d/none")));
    SAY(remove(p("d/e")));
    SAY(rename(p("d/c"), "/tmp/elsewhere") < 0 && errno == EXDEV);
    SAY(chown(p("d/c"), -1, -1));
    SAY(chmod(p("d/c"), 04711));
    SAY(lchown(p("d/l"), getuid(), -1));
    show("changed", p("d/c"));
    struct timespec times[2] = {{0, UTIME_OMIT}, {3000, 9}};
    SAY(utimensat(AT_FDCWD, p("d/c"), times, 0));
    struct stat st;
    SAY(stat(p("d/c"), &st));
    printf("mtime %ld.%ld\n", st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    struct utimbuf old = {11, 12};
    SAY(utime(p("d/c"), &old));
    struct statx stx;
    SAY(statx(AT_FDCWD, p("d/c"), 0, STATX_ALL, &stx));
    printf("statx %o %ld %ld btime %d\n", stx.stx_mode, (long)stx.stx_size, (long)stx.stx_mtime.tv_sec, !!(stx.stx_mask & STATX_BTIME));
    SAY(mkfifo(p("d/pipe"), 0600));
    int pipe = open(p("d/pipe"), O_RDWR);
    SAY(write(pipe, "through", 7));
    SAY(read(pipe, target, 7));
    close(pipe);
    SAY(mknod(p("d/node"), S_IFREG | 0600, 0));
    show("node", p("d/node"));
    SAY(mkdir(p("a-name-that-is-longer-than-any-name-may-be-0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"), 0700));
    mode_t before = umask(077);
    SAY(close(open(p("d/masked"), O_CREAT | O_RDWR, 0666)));
    umask(before);
    show("masked", p("d/masked"));
    SAY(setxattr(p("d/c"), "user.a", "b", 1, 0));
    SAY(getxattr(p("d/c"), "user.a", target, sizeof target));
    SAY(getxattr(p("d/c"), "user.none", target, sizeof target));
    SAY(fchmodat(AT_FDCWD, p("d/a"), 0601, AT_SYMLINK_NOFOLLOW));
    show("changed", p("d/a"));
    SAY(fchmodat(AT_FDCWD, p("d/l"), 0600, AT_SYMLINK_NOFOLLOW));
    SAY(fchmodat(AT_FDCWD, p("none"), 0600, AT_SYMLINK_NOFOLLOW));
    /* Paths that cannot be read, wholly or behind a page's end. */
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 2 * 4096, 4096);
    char *across = pages + 4096 - strlen(p("a")) + 1, *cut = pages + 2 * 4096 - strlen(p("a"));
    strcpy(across, p("across"));
    memcpy(cut, p("a"), strlen(p("a")));
    SAY(mkdir(across, 0755));
    SAY(rmdir(across));
    const char *wrong[] = {(char *)0xdeadc0de, cut, NULL};
    for (int i = 0; i < 3; i++) {
        SAY(open(wrong[i], O_RDWR | O_CREAT, 0644));
        SAY(mkdir(wrong[i], 0755));
        SAY(rename(wrong[i], p("x")));
        SAY(symlink(wrong[i], p("x")));
        SAY(symlink("x", wrong[i]));
        SAY(unlink(wrong[i]));
        SAY(truncate(wrong[i], 1));
        SAY(access(wrong[i], F_OK));
    }
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static void directories(void) {
    struct stat st;
    int d = open(p("d"), O_RDONLY | O_DIRECTORY);
    SAY(d >= 0);
    SAY(fsync(d));
    int fd = openat(d, "inner", O_CREAT | O_RDWR, 0600);
    SAY(write(fd, "inner", 5));
    close(fd);
    SAY(fstatat(d, "inner", &st, 0));
    SAY(fstatat(d, "", &st, AT_EMPTY_PATH));
    SAY(S_ISDIR(st.st_mode));
    SAY(mkdirat(d, "sub", 0755));
    SAY(symlinkat("inner", d, "to"));
    SAY(unlinkat(d, "to", 0));
    SAY(renameat(d, "inner", d, "sub/inner"));
    SAY(faccessat(d, "sub/inner", R_OK, 0));
    SAY(read(d, &st, 10));
    SAY(write(d, &st, 10));
    DIR *dir = fdopendir(d);
    int count = 0;
    while (readdir(dir)) count++;
    SAY(count);
    SAY(unlinkat(dirfd(dir), "masked", 0));
    rewinddir(dir);
    for (count = 0; readdir(dir);) count++;
    SAY(count);
    SAY(closedir(dir));
    struct dirent **list;
    int entries = scandir(p("d"), &list, NULL, by_name);
    for (int i = 0; i < entries; i++) printf("entry %s\n", list[i]->d_name);
    dir = opendir(p("d/sub"));
    for (struct dirent *it; (it = readdir(dir));)
        if (it->d_name[0] != '.') printf("in sub %s %d\n", it->d_name, unlinkat(dirfd(dir), it->d_name, 0));
    closedir(dir);
    SAY(chdir(p("d")));
    SAY(close(open("relative", O_CREAT | O_WRONLY, 0600)));
    SAY(access("relative", F_OK));
    SAY(rename("relative", "sub/relative"));
    SAY(chdir("sub"));
    SAY(access("relative", F_OK));
    SAY(access("../c", F_OK));
    char cwd[4096];
    SAY(strcmp(strrchr(getcwd(cwd, sizeof cwd), '/'), "/sub"));
    int up = open("..", O_RDONLY | O_DIRECTORY);
    SAY(fchdir(up));
    close(up);
    SAY(access("sub/relative", F_OK));
    SAY(chdir("/"));
}

static int listed(DIR *dir, int count_max) {
    int count = 0;
    for (struct dirent *it; count < count_max && (it = readdir(dir));)
        count += it->d_name[0] == 'n' && it->d_type == DT_REG && it->d_ino && it->d_reclen % 8 == 0;
    return count;
}

/* Streams of directories, and what becomes of them when a directory changes, or a child or a number's other uses come between. */
static void listings(void) {
    char name[64];
    SAY(mkdir(p("listed"), 0755));
    for (int i = 0; i < 700; i++) {
        snprintf(name, sizeof name, "listed/n%d", i);
        close(open(p(name), O_CREAT | O_WRONLY, 0644));
    }
    DIR *dir = opendir(p("listed"));
    SAY(dirfd(dir) >= 0);
    struct stat st;
    SAY(fstatat(dirfd(dir), "n5", &st, 0));
    SAY(fstat(dirfd(dir), &st));
    SAY(listed(dir, 300));
    long place = telldir(dir);
    SAY(listed(dir, 1000));
    SAY(readdir(dir) == NULL && errno == 0);
    seekdir(dir, place);
    SAY(listed(dir, 1000));
    rewinddir(dir);
    SAY(listed(dir, 1000));
    rewinddir(dir);
    SAY(listed(dir, 350));
    pid_t child = fork();
    if (child == 0) _exit(listed(dir, 1000) / 2);
    int status;
    waitpid(child, &status, 0);
    SAY(WEXITSTATUS(status));
    SAY(closedir(dir));
    int fd = open(p("listed"), O_RDONLY | O_DIRECTORY);
    dir = fdopendir(fd);
    SAY(dirfd(dir) == fd);
    struct dirent entry, *result;
    int count = 0;
    while (readdir_r(dir, &entry, &result) == 0 && result) count += entry.d_name[0] == 'n';
    SAY(count);
    rewinddir(dir);
    int removed = 0;
    for (struct dirent *it; (it = readdir(dir));)
        if (it->d_name[0] == 'n') removed += unlinkat(dirfd(dir), it->d_name, 0) == 0;
    SAY(removed);
    SAY(rmdir(p("listed")));
    rewinddir(dir);
    SAY(listed(dir, 10));
    SAY(closedir(dir));
    SAY(fcntl(fd, F_GETFD));
    SAY(opendir(p("none")) != NULL);
    SAY(opendir(p("file")) != NULL);
    SAY(mkdir(p("closed"), 0755));
    dir = opendir(p("closed"));
    close(dirfd(dir));
    SAY(readdir(dir) == NULL && errno == EBADF);
    SAY(closedir(dir));
    SAY(rmdir(p("closed")));
}

static void descriptors(void) {
    char bytes[16] = {0};
    int fd = open(p("dup"), O_CREAT | O_RDWR | O_TRUNC, 0600);
    int other = dup(fd);
    SAY(write(fd, "one", 3));
    SAY(write(other, "two", 3));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(close(fd));
    SAY(write(other, "three", 5));
    int high = fcntl(other, F_DUPFD_CLOEXEC, 100);
    SAY(high);
    SAY(fcntl(high, F_GETFD));
    SAY(dup2(high, 200));
    SAY(fcntl(200, F_GETFD));
    SAY(dup3(high, 201, O_CLOEXEC));
    SAY(dup2(200, 200));
    SAY(dup3(200, 200, 0));
    SAY(dup2(250, 200));
    content("by 200", 200);
    SAY(dup2(200, 201));
    SAY(lseek(201, 0, SEEK_CUR));
    SAY(close_range(200, 201, 0));
    content("closed", 200);
    lseek(high, 0, SEEK_SET);
    SAY(read(other, bytes, 3));
    printf("read %s\n", bytes);
    /* The lowest number is taken. */
    int one = open(p("dup"), O_RDONLY), two = open(p("dup"), O_RDONLY);
    SAY(two - one);
    close(one);
    SAY(open(p("dup"), O_RDONLY) - one);
    close(one);
    close(two);
    close(high);
    /* Standard output into a file. */
    fflush(stdout);
    int saved = dup(1), out = open(p("out"), O_CREAT | O_RDWR, 0600);
    dup2(out, 1);
    printf("printed\n");
    fflush(stdout);
    dprintf(out, "formatted %d\n", 5);
    dup2(saved, 1);
    close(saved);
    content("out", out);
    FILE *stream = fdopen(out, "r+");
    SAY(fseek(stream, 0, SEEK_END));
    SAY(fprintf(stream, "by a stream"));
    SAY(fclose(stream));
    show("out", p("out"));
    stream = fopen(p("out"), "r");
    char line[100];
    while (fgets(line, sizeof line, stream)) printf("line %s", line);
    printf("\n");
    fclose(stream);
    close(other);
}

static void children(void) {
    char bytes[16] = {0};
    int status;
    int fd = open(p("shared"), O_CREAT | O_RDWR | O_TRUNC, 0600);
    SAY(write(fd, "parent ", 7));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        write(fd, "child ", 6);
        int mine = open(p("childs"), O_CREAT | O_WRONLY, 0600);
        write(mine, "mine", 4);
        close(mine);
        _exit(access(p("childs"), F_OK));
    }
    waitpid(child, &status, 0);
    SAY(status);
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(write(fd, "parent again", 12));
    content("after a fork", fd);
    show("childs", p("childs"));
    close(fd);
    fd = open(p("shared"), O_WRONLY | O_APPEND);
    char command[8192];
    snprintf(command, sizeof command, "echo shell >&%d; cat %s", fd, p("shared"));
    fflush(stdout);
    SAY(system(command));
    close(fd);
    fd = open(p("spawned"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    char *words[] = {"echo", "spawned", NULL};
    SAY(posix_spawnp(&child, "echo", &actions, NULL, words, environ));
    waitpid(child, &status, 0);
    SAY(write(fd, "and more", 8));
    close(fd);
    fd = open(p("spawned"), O_RDONLY);
    content("spawned", fd);
    child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        execlp("cat", "cat", NULL);
        _exit(1);
    }
    waitpid(child, &status, 0);
    printf("\n");
    SAY(status);
    SAY(lseek(fd, 0, SEEK_CUR));
    close(fd);
    FILE *pipe = popen("echo from a pipe", "r");
    SAY(fread(bytes, 1, 10, pipe));
    pclose(pipe);
    /* Appends of two processes do not overwrite each other. */
    child = fork();
    for (int i = 0; i < 200; i++) {
        fd = open(p("appended"), O_CREAT | O_WRONLY | O_APPEND, 0600);
        if (write(fd, child ? "p" : "c", 1) != 1) _exit(9);
        close(fd);
    }
    if (child == 0) _exit(0);
    waitpid(child, &status, 0);
    SAY(status);
    show("appended", p("appended"));
}

static void kernels(void) {
    char bytes[32] = {0};
    int fd = open(p("mapped"), O_CREAT | O_RDWR, 0600);
    SAY(write(fd, "0123456789", 10));
    SAY(ftruncate(fd, 8192));
    char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    SAY(memcmp(map, "0123456789", 10));
    memcpy(map + 4096, "mapped", 6);
    SAY(msync(map, 8192, MS_SYNC));
    SAY(pread(fd, bytes, 6, 4096));
    printf("read %s\n", bytes);
    SAY(pwrite(fd, "X", 1, 0));
    SAY(map[0]);
    SAY(lseek(fd, 0, SEEK_CUR));
    munmap(map, 8192);
    int to = open(p("sent"), O_CREAT | O_RDWR, 0600);
    off_t from = 0;
    SAY(sendfile(to, fd, &from, 10));
    SAY(copy_file_range(fd, &from, to, NULL, 10, 0));
    content("sent", to);
    close(to);
    to = open(p("locked"), O_CREAT | O_RDWR, 0600);
    SAY(flock(to, LOCK_EX));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 10};
    SAY(fcntl(to, F_SETLK, &lock));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int other = open(p("locked"), O_RDWR);
        struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
        int refused = fcntl(other, F_SETLK, &mine) < 0, flocked = flock(other, LOCK_EX | LOCK_NB) < 0;
        fcntl(other, F_GETLK, &mine);
        _exit(refused + 2 * flocked + 4 * (mine.l_start == 5) + 8 * (mine.l_pid == getppid()));
    }
    int status;
    waitpid(child, &status, 0);
    SAY(WEXITSTATUS(status));
    close(open(p("locked"), O_RDONLY));
    child = fork();
    if (child == 0) {
        int other = open(p("locked"), O_RDWR);
        struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 100};
        _exit(fcntl(other, F_SETLK, &mine) < 0);
    }
    waitpid(child, &status, 0);
    SAY(WEXITSTATUS(status));
    SAY(lockf(to, F_LOCK, 0));
    close(to);
    struct pollfd polled = {fd, POLLIN, 0};
    SAY(poll(&polled, 1, 0));
    to = open(p("sent"), O_RDONLY);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(to, &set);
    struct timeval at_once = {0, 0};
    SAY(select(to + 1, &set, NULL, NULL, &at_once));
    close(to);
    to = open(p("sent"), O_RDONLY);
    struct epoll_event event = {EPOLLIN, {0}};
    /* A file of FUSE can be polled, and others cannot. */
    SAY(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, to, &event) == 0 || errno == EPERM);
    char shown[64], real[4096] = {0};
    snprintf(shown, sizeof shown, "/proc/self/fd/%d", to);
    close(to);
    to = open(p("sent"), O_RDONLY);
    SAY(readlink(shown, real, sizeof real) > 0);
    SAY(strcmp(strrchr(real, '/'), "/sent"));
    int again = open(shown, O_RDONLY);
    content("again", again);
    close(again);
    close(to);
    to = open(p("sent"), O_RDONLY);
    SAY(read(to, bytes, 3));
    SAY(syscall(SYS_read, to, bytes, 3));
    SAY(lseek(to, 0, SEEK_CUR));
    close(to);
    to = open(p("sent"), O_RDWR);
    SAY(fsetxattr(to, "user.x", "y", 1, 0));
    SAY(fgetxattr(to, "user.x", bytes, sizeof bytes));
    SAY(write(to, "w", 1));
    /* To another process by a socket. */
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    char space[CMSG_SPACE(sizeof(int))];
    struct iovec part = {"m", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &to, sizeof to);
    SAY(sendmsg(pair[0], &message, 0));
    SAY(recvmsg(pair[1], &message, 0));
    memcpy(&again, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof again);
    SAY(lseek(again, 0, SEEK_CUR));
    content("received", again);
    close(to);
    close(again);
    /* Open, without a name. */
    to = open(p("sent"), O_RDWR);
    SAY(unlink(p("sent")));
    SAY(write(to, "still", 5));
    fflush(stdout);
    child = fork();
    if (child == 0) _exit(write(to, "there", 5) != 5);
    waitpid(child, &status, 0);
    SAY(status);
    SAY(lseek(to, 0, SEEK_CUR));
    content("without a name", to);
    close(to);
    /* The same, after a child has shared it. */
    to = open(p("shared before"), O_CREAT | O_RDWR, 0600);
    SAY(write(to, "first ", 6));
    fflush(stdout);
    child = fork();
    if (child == 0) _exit(write(to, "child ", 6) != 6);
    waitpid(child, &status, 0);
    SAY(status);
    SAY(unlink(p("shared before")));
    close(open(p("shared before"), O_CREAT | O_RDWR, 0600));
    SAY(write(to, "last", 4));
    content("unlinked after", to);
    struct stat st;
    SAY(fstat(to, &st));
    SAY(st.st_nlink);
    close(to);
    close(fd);
}

#ifdef __x86_64__
/* System calls past the C library. */
static long raw(long number, long a, long b, long c, long d) {
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = 0;
    register long sixth __asm__("r9") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return result;
}

static int seen;
static void on_signal(int number) { seen += number == SIGSYS ? 1 : 100; }

static void *raw_writes(void *argument) {
    int fd = open(p(argument), O_CREAT | O_RDWR, 0600);
    if (write(fd, "served ", 7) != 7) return "write";
    if (raw(SYS_write, fd, (long)"raw ", 4, 0) != 4) return "raw write";
    if (write(fd, "served", 6) != 6) return "another write";
    if (raw(SYS_fsync, fd, 0, 0, 0) != 0) return "fsync";
    content("raw and served", fd);
    return raw(SYS_close, fd, 0, 0, 0) != 0 ? "close" : write(fd, "x", 1) != -1 ? "write after close" : NULL;
}

static void raw_calls(void) {
    struct stat st;
    char bytes[16] = {0};
    SAY(mkdir(p("raw"), 0700));
    int fd = open(p("raw/a"), O_CREAT | O_RDWR, 0600);
    SAY(write(fd, "0123456789", 10));
    SAY(raw(SYS_lseek, fd, 4, SEEK_SET, 0));
    SAY(raw(SYS_read, fd, (long)bytes, 3, 0));
    puts(bytes);
    SAY(lseek(fd, 0, SEEK_CUR));
    close(fd);
    fd = open(p("raw/a"), O_RDWR | O_APPEND);
    SAY(raw(SYS_fstat, fd, (long)&st, 0, 0));
    SAY(st.st_size);
    SAY(write(fd, "abc", 3));
    int again = raw(SYS_dup, fd, 0, 0, 0);
    SAY(write(again, "def", 3));
    content("by a duplicate", again);
    SAY(raw(SYS_syncfs, fd, 0, 0, 0));
    SAY(raw(SYS_fadvise64, fd, 0, 0, 0));
    SAY(raw(SYS_ftruncate, again, 5, 0, 0));
    SAY(raw(SYS_close, again, 0, 0, 0));
    SAY(raw(SYS_read, 9999, (long)bytes, 3, 0));
    close(fd);
    int directory = open(p("raw"), O_RDONLY | O_DIRECTORY);
    fd = raw(SYS_openat, directory, (long)"by a directory", O_CREAT | O_RDWR, 0600);
    SAY(fd >= 0);
    SAY(write(fd, "here", 4));
    show("made by a raw call", p("raw/by a directory"));
    close(fd);
    close(directory);
    /* With all signals blocked, and in a thread that begins so. */
    sigset_t all, before, now;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    printf("blocked: %s\n", (char *)raw_writes("raw/blocked") ?: "done");
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, raw_writes, "raw/thread");
    pthread_join(thread, &result);
    printf("in a thread: %s\n", (char *)result ?: "done");
    SAY(raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, (long)&now, 8));
    SAY(sigismember(&now, SIGTERM));
    SAY(raw(SYS_rt_sigprocmask, SIG_BLOCK, (long)&all, 0, 8));
    printf("blocked by a raw call: %s\n", (char *)raw_writes("raw/blocked too") ?: "done");
    pthread_sigmask(SIG_SETMASK, &before, &now);
    SAY(sigismember(&now, SIGTERM));
    /* SIGSYS is the program's, too. */
    signal(SIGSYS, on_signal);
    raise(SIGSYS);
    SAY(seen);
    SAY(signal(SIGSYS, SIG_DFL) == on_signal);
    /* Children. */
    fd = open(p("raw/child"), O_CREAT | O_RDWR, 0600);
    SAY(write(fd, "parent ", 7));
    fflush(stdout);
    int status, child = raw(SYS_fork, 0, 0, 0, 0);
    if (child == 0) _exit(write(fd, "child ", 6) != 6 || raw(SYS_fsync, fd, 0, 0, 0) != 0);
    waitpid(child, &status, 0);
    SAY(status);
    SAY(write(fd, "parent", 6));
    content("with a child", fd);
    child = fork();
    if (child == 0) _exit((long)raw_writes("raw/of a child") != 0);
    waitpid(child, &status, 0);
    SAY(status);
    child = raw(SYS_fork, 0, 0, 0, 0);
    if (child == 0) raw(SYS_kill, raw(SYS_getpid, 0, 0, 0, 0), SIGSYS, 0, 0);
    waitpid(child, &status, 0);
    SAY(WTERMSIG(status));
    close(fd);
}
#else
static void raw_calls(void) {}
#endif

static void *writes(void *argument) {
    long number = (long)argument;
    for (int i = 0; i < 200; i++) {
        char path[64], bytes[100];
        snprintf(path, sizeof path, "threads/%ld-%d", number, i);
        int fd = open(p(path), O_CREAT | O_RDWR, 0600);
        memset(bytes, 'a' + number, sizeof bytes);
        if (fd < 0 || write(fd, bytes, sizeof bytes) != sizeof bytes) return "write";
        if (pread(fd, bytes, 50, 50) != 50 || bytes[0] != 'a' + number) return "read";
        close(fd);
        if (i % 2 && unlink(p(path)) < 0) return "unlink";
    }
    return NULL;
}

static void threads(void) {
    SAY(mkdir(p("threads"), 0700));
    pthread_t thread[4];
    void *result;
    for (long i = 0; i < 4; i++) pthread_create(&thread[i], NULL, writes, (void *)i);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &result);
        printf("thread %d: %s\n", i, result ? (char *)result : "done");
    }
    struct dirent **list;
    SAY(scandir(p("threads"), &list, NULL, by_name));
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/* Handlers of signals that come while calls are made, and make calls themselves. */
static int handlers_file, is_sending;
static char handlers_path[4096];
static volatile sig_atomic_t arrived, failed, jumps;
static volatile long values;
static sigjmp_buf back;
static pthread_t receiver;

static void writes_a_byte(int number) {
    struct stat st;
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    failed += !sigismember(&now, number) || !sigismember(&now, SIGUSR2);
    failed += write(handlers_file, "s", 1) != 1 || stat(handlers_path, &st) != 0;
    arrived++;
}

static void takes_a_value(int number, siginfo_t *about, void *context) {
    (void)context;
    failed += number != SIGRTMIN || about->si_code != SI_QUEUE;
    values += about->si_value.sival_int;
}

static void jumps_out(int number) {
    (void)number;
    if (jumps++ < 100) siglongjmp(back, 1);
}

static void *sends(void *argument) {
    (void)argument;
    union sigval one = {.sival_int = 1};
    for (int i = 0; i < 300; i++) {
        pthread_kill(receiver, SIGUSR1);
        if (pthread_sigqueue(receiver, SIGRTMIN, one) != 0) return "sigqueue";
        usleep(50);
    }
    __atomic_store_n(&is_sending, 0, __ATOMIC_SEQ_CST);
    return NULL;
}

static const char *many_calls(const char *name, int at_least) {
    char bytes[16];
    struct stat st;
    for (int i = 0; i < at_least || __atomic_load_n(&is_sending, __ATOMIC_SEQ_CST); i++) {
        int fd = open(p(name), O_CREAT | O_RDWR, 0600);
        if (fd < 0 || pwrite(fd, "0123456789", 10, 5) != 10 || pread(fd, bytes, 5, 5) != 5) return "calls";
        if (memcmp(bytes, "01234", 5) || fstat(fd, &st) != 0 || st.st_size != 15) return "content";
        if (close(fd) != 0 || rename(p(name), p("handlers/other")) != 0 || unlink(p("handlers/other")) != 0) return "names";
    }
    return "done";
}

static void handlers(void) {
    SAY(mkdir(p("handlers"), 0700));
    snprintf(handlers_path, sizeof handlers_path, "%s", p("handlers/file"));
    handlers_file = open(handlers_path, O_CREAT | O_RDWR | O_APPEND, 0600);
    struct sigaction action = {.sa_handler = writes_a_byte, .sa_flags = SA_RESTART}, before;
    sigaddset(&action.sa_mask, SIGUSR2);
    SAY(sigaction(SIGUSR1, &action, NULL));
    SAY(sigaction(SIGUSR1, NULL, &before));
    SAY(before.sa_handler == writes_a_byte && (before.sa_flags & 0xf0ffffff) == SA_RESTART && sigismember(&before.sa_mask, SIGUSR2));
    struct sigaction queued = {.sa_sigaction = takes_a_value, .sa_flags = SA_SIGINFO | SA_RESTART};
    SAY(sigaction(SIGRTMIN, &queued, NULL));
    receiver = pthread_self();
    is_sending = 1;
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, sends, NULL);
    printf("calls beside handlers: %s\n", many_calls("handlers/beside", 1));
    pthread_join(thread, &result);
    printf("sent: %s\n", result ? (char *)result : "done");
    struct stat st;
    SAY(fstat(handlers_file, &st));
    SAY(st.st_size == arrived && arrived > 0 && arrived <= 300);
    SAY(values);
    SAY(failed);
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    SAY(sigismember(&now, SIGUSR1) || sigismember(&now, SIGTERM));
    /* Out of a call for good. */
    SAY(signal(SIGALRM, jumps_out) == SIG_DFL);
    struct itimerval every = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    sigsetjmp(back, 1);
    if (jumps == 0) setitimer(ITIMER_REAL, &every, NULL);
    while (jumps < 100) many_calls("handlers/jumped", 1);
    setitimer(ITIMER_REAL, &never, NULL);
    unlink(p("handlers/jumped"));
    unlink(p("handlers/other"));
    printf("calls after jumps: %s\n", many_calls("handlers/after", 10));
    SAY(signal(SIGALRM, SIG_IGN) == jumps_out);
    /* Once, and with its own signal let through. */
    action.sa_flags = SA_RESETHAND;
    SAY(sigaction(SIGUSR1, &action, &before));
    SAY(before.sa_handler == writes_a_byte);
    int count = arrived;
    raise(SIGUSR1);
    SAY(arrived - count);
    SAY(sigaction(SIGUSR1, NULL, &before));
    SAY(before.sa_handler == SIG_DFL);
    SAY(siginterrupt(SIGUSR2, 1));
    SAY(signal(SIGUSR2, jumps_out) == SIG_DFL);
    SAY(sigaction(SIGUSR2, NULL, &before));
    SAY((before.sa_flags & SA_RESTART) == 0 && before.sa_handler == jumps_out);
    SAY(signal(SIGUSR2, SIG_DFL) == jumps_out);
    close(handlers_file);
    /* How many signals become one is for chance. */
    SAY(unlink(handlers_path));
}

/* What streams write, which the kernel serves, is between what calls have written before and after. */
static void streams(void) {
    char line[64];
    int fd = open(p("stream"), O_CREAT | O_RDWR | O_APPEND, 0644);
    FILE *stream = fopen(p("stream"), "a+");
    for (int round = 0; round < 3; round++) {
        SAY(write(fd, "by write\n", 9));
        SAY(fprintf(stream, "by stream %d\n", round));
        SAY(fflush(stream));
        SAY(write(fd, "after\n", 6));
    }
    SAY(dprintf(fd, "by dprintf\n"));
    content("streams and calls", fd);
    rewind(stream);
    while (fgets(line, sizeof line, stream)) printf("read: %s", line);
    SAY(ftruncate(fd, 0));
    SAY(fclose(stream));
    /* A file that was made by a call, written by a stream, and read by a call. */
    int made = open(p("streamed"), O_CREAT | O_RDWR, 0644);
    SAY(pwrite(made, "0123456789", 10, 0));
    stream = fopen(p("streamed"), "r+");
    SAY(fseek(stream, 4, SEEK_SET));
    SAY(fwrite("xy", 1, 2, stream));
    SAY(fclose(stream));
    content("written in the middle", made);
    SAY(pwrite(made, "END", 3, 10));
    stream = fopen(p("streamed"), "r");
    SAY(fread(line, 1, sizeof line, stream));
    SAY(memcmp(line, "0123xy6789END", 13));
    SAY(fclose(stream));
    stream = fopen(p("streamed"), "w");
    struct stat st;
    SAY(fstat(made, &st));
    SAY(st.st_size);
    SAY(fclose(stream));
    close(made);
    close(fd);
}

static void attributes(void) {
    char value[64], names[256];
    int fd = open(p("attributes"), O_CREAT | O_RDWR, 0644);
    SAY(symlink("attributes", p("to-attributes")));
    SAY(setxattr(p("attributes"), "user.a", "one", 3, XATTR_CREATE));
    SAY(setxattr(p("attributes"), "user.a", "two", 3, XATTR_CREATE));
    SAY(setxattr(p("attributes"), "user.b", "two", 3, XATTR_REPLACE));
    SAY(fsetxattr(fd, "user.b", "", 0, 0));
    SAY(fsetxattr(fd, "user.c", "many more bytes", 15, 0));
    SAY(getxattr(p("to-attributes"), "user.a", value, sizeof value));
    SAY(memcmp(value, "one", 3));
    SAY(lgetxattr(p("to-attributes"), "user.a", value, sizeof value) < 0);
    SAY(lsetxattr(p("to-attributes"), "user.a", "x", 1, 0));
    SAY(getxattr(p("attributes"), "user.c", NULL, 0));
    SAY(getxattr(p("attributes"), "user.c", value, 3));
    SAY(fgetxattr(fd, "user.b", value, sizeof value));
    SAY(fgetxattr(fd, "user.none", value, sizeof value));
    SAY(fgetxattr(fd, "system.posix_acl_access", value, sizeof value));
    SAY(getxattr(p("nothing"), "user.a", value, sizeof value));
    SAY(setxattr(p("attributes"), "", "x", 1, 0));
    SAY(setxattr(p("attributes"), "nowhere.a", "x", 1, 0));
    SAY(setxattr(p("attributes"), "user.a", "x", 1, 7));
    SAY(listxattr(p("attributes"), names, sizeof names));
    SAY(removexattr(p("attributes"), "user.a"));
    SAY(removexattr(p("attributes"), "user.a"));
    SAY(fremovexattr(fd, "user.b"));
    SAY(lremovexattr(p("attributes"), "user.c"));
    SAY(flistxattr(fd, names, sizeof names));
    close(fd);
}

static void copies(void) {
    int from = open(p("from"), O_CREAT | O_RDWR, 0644), to = open(p("copy"), O_CREAT | O_RDWR, 0644);
    int end = open(p("copy"), O_WRONLY | O_APPEND), elsewhere = open("/proc/self/exe", O_RDONLY);
    loff_t at = 2, into = 5;
    SAY(pwrite(from, "0123456789", 10, 0));
    SAY(copy_file_range(from, &at, to, &into, 4, 0));
    SAY(at);
    SAY(into);
    content("copied", to);
    SAY(lseek(from, 6, SEEK_SET));
    SAY(copy_file_range(from, NULL, to, NULL, 100, 0));
    SAY(lseek(from, 0, SEEK_CUR));
    SAY(lseek(to, 0, SEEK_CUR));
    SAY(copy_file_range(from, NULL, to, NULL, 100, 0));
    content("copied", to);
    SAY(copy_file_range(from, NULL, to, NULL, 1, 1));
    SAY(copy_file_range(from, NULL, end, NULL, 1, 0));
    SAY(copy_file_range(end, NULL, to, NULL, 1, 0));
    SAY(copy_file_range(elsewhere, NULL, to, NULL, 1, 0));
    at = -1;
    SAY(copy_file_range(from, &at, to, NULL, 1, 0) < 0);
    at = 0, into = 2;
    SAY(copy_file_range(from, &at, from, &into, 5, 0));
    close(from), close(to), close(end), close(elsewhere);
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    if (count == 3) {
        /* After exec: descriptors that were kept. */
        content("after exec", atoi(words[2]));
        SAY(lseek(atoi(words[2]), 0, SEEK_CUR));
        return 0;
    }
    snprintf(root, sizeof root, "%s", words[1]);
    umask(022);
    files();
    names();
    directories();
    listings();
    descriptors();
    children();
    kernels();
    raw_calls();
    threads();
    handlers();
    streams();
    attributes();
    copies();
    int kept = open(p("kept"), O_CREAT | O_RDWR, 0600), lost = open(p("kept"), O_RDONLY | O_CLOEXEC);
    SAY(write(kept, "kept", 4));
    (void)lost;
    char number[16];
    snprintf(number, sizeof number, "%d", kept);
    fflush(stdout);
    execl("/proc/self/exe", words[0], root, number, NULL);
    return 1;
}
