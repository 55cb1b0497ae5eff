/* What a process was told is durable is there after it was killed. argv[1] is the area's file. */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Pushes and puts, both or neither, and tells the parent of each that is durable. */
static void fill(const char *path, int pipe)
{
    swy_area *area = open_area(path, 32 << 20);
    swy_queue *queue;
    swy_tree *tree;
    swy_batch *batch;
    uint64_t position;
    OK(swy_queue_open(area, "queue", 0, &queue));
    OK(swy_tree_open(area, "tree", 0, &tree));
    OK(swy_batch_open(area, &batch));
    OK(swy_queue_positions(queue, NULL, &position));
    for (;; position++) {
        uint64_t got;
        OK(swy_batch_push(batch, queue, &position, sizeof position));
        OK(swy_batch_tree_put(batch, tree, &position, sizeof position, TEXT("there")));
        OK(swy_batch_commit(batch, &got, 1));
        EXPECT(got == position && write(pipe, &position, sizeof position) == sizeof position);
    }
}

int main(int argc, char **argv)
{
    uint64_t last = 0, told, pushed, put, position;
    int round;
    EXPECT(argc == 2);
    for (round = 0; round < 10; round++) {
        int ends[2], status, i;
        swy_area *area;
        swy_queue *queue;
        swy_tree *tree;
        pid_t pid;
        EXPECT(pipe(ends) == 0 && (pid = fork()) >= 0);
        if (pid == 0)
            fill(argv[1], ends[1]);
        close(ends[1]);
        for (i = 0; i < 20 + round && read(ends[0], &told, sizeof told) == sizeof told; i++)
            last = told + 1;
        EXPECT(kill(pid, SIGKILL) == 0);
        while (read(ends[0], &told, sizeof told) == sizeof told)
            last = told + 1;
        close(ends[0]);
        EXPECT(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        area = open_area(argv[1], 0);
        OK(swy_queue_open(area, "queue", SWY_EXISTING, &queue));
        OK(swy_tree_open(area, "tree", SWY_EXISTING, &tree));
        OK(swy_queue_length(queue, &pushed));
        OK(swy_tree_length(tree, &put));
        EXPECT(pushed >= last && pushed == put && last > 0);
        for (position = 0; position < last; position++) {
            swy_bytes value;
            OK(swy_tree_get(tree, &position, sizeof position, &value));
            EXPECT(is_text(&value, "there"));
        }
        OK(swy_tree_close(tree));
        OK(swy_queue_close(queue));
        OK(swy_area_close(area));
    }
    return 0;
}
