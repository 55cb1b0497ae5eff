/* Sockets that the kernel has to have, and an epoll set with descriptors of both kinds: run_tcp_calls IP PORT, at which bytes are echoed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in server;
extern char **environ;

static int connected(int flags) {
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    if (connect(fd, (struct sockaddr *)&server, sizeof server) != 0) {
        perror("connect");
        exit(1);
    }
    if (write(fd, "echo\n", 5) != 5) exit(1);
    return fd;
}

static void show_peer(int fd) {
    struct sockaddr_in peer;
    socklen_t bytes = sizeof peer;
    int result = getpeername(fd, (struct sockaddr *)&peer, &bytes);
    printf("peer %d %d %d %d\n", result, peer.sin_family == AF_INET, peer.sin_addr.s_addr == server.sin_addr.s_addr,
           peer.sin_port == server.sin_port);
}

static void as_stream(void) {
    int fd = connected(0);
    FILE *stream = fdopen(fd, "r+");
    fprintf(stream, "a line\n");
    fflush(stream);
    char line[100];
    printf("stream: %s", fgets(line, sizeof line, stream));
    show_peer(fd);
    fclose(stream);
}

static void as_programs(void) {
    int fd = connected(0);
    char command[100];
    snprintf(command, sizeof command, "echo from a child >&%d; head -c 13 <&%d", fd, fd);
    printf("system %d\n", system(command));
    close(fd);
    fd = connected(0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    char *words[] = {"echo", "spawned", NULL};
    pid_t pid;
    int status = -1;
    printf("spawn %d\n", posix_spawnp(&pid, "echo", &actions, NULL, words, environ));
    waitpid(pid, &status, 0);
    char bytes[8] = "";
    ssize_t count = recv(fd, bytes, 8, MSG_WAITALL);
    printf("%d %zd %.7s\n", status, count, bytes);
    close(fd);
}

static void by_splice_and_rights(void) {
    int ends[2], fd = connected(0);
    if (pipe(ends) != 0 || write(ends[1], "spliced", 7) != 7) exit(1);
    printf("splice %zd", splice(ends[0], NULL, fd, NULL, 7, 0));
    char bytes[8] = "";
    printf(" %zd %s\n", recv(fd, bytes, 7, MSG_WAITALL), bytes);
    close(fd);
    fd = connected(0);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) exit(1);
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    printf("rights %zd", sendmsg(pair[0], &message, 0));
    close(fd);
    printf(" %zd", recvmsg(pair[1], &message, 0));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    printf(" %zd", send(fd, "passed", 6, MSG_NOSIGNAL));
    memset(bytes, 0, sizeof bytes);
    printf(" %zd %s\n", recv(fd, bytes, 6, MSG_WAITALL), bytes);
    show_peer(fd);
    shutdown(fd, SHUT_WR);
    printf("end %zd\n", recv(fd, bytes, 6, 0));
    close(fd);
}

/* A socket that is in the set before it connects, beside a timer. */
static void by_epoll(void) {
    int set = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec once = {.it_value = {0, 50000000}};
    timerfd_settime(timer, 0, &once, NULL);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLET, {.u32 = 1}};
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    connect(fd, (struct sockaddr *)&server, sizeof server);
    event = (struct epoll_event){EPOLLIN, {.u32 = 2}};
    epoll_ctl(set, EPOLL_CTL_ADD, timer, &event);
    uint64_t ticks = 0;
    int can_write = 0;
    for (int turn = 0; turn < 100 && !(ticks && can_write); turn++) {
        struct epoll_event found[4];
        int count = epoll_wait(set, found, 4, 2000);
        for (int i = 0; i < count; i++) {
            if (found[i].data.u32 == 2 && read(timer, &ticks, sizeof ticks) != sizeof ticks) exit(1);
            if (found[i].data.u32 == 1 && found[i].events == EPOLLOUT) can_write = 1;
        }
    }
    printf("epoll %d %d\n", ticks > 0, can_write);
    close(fd), close(timer), close(set);
}

int main(int count, char **words) {
    if (count != 3) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    server.sin_family = AF_INET;
    server.sin_port = htons(atoi(words[2]));
    inet_pton(AF_INET, words[1], &server.sin_addr);
    as_stream();
    as_programs();
    by_splice_and_rights();
    by_epoll();
    return 0;
}
