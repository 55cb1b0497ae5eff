// What Java programs do with files that they want to keep. A load notes what is durable: positional writes with force, a file opened
// "rwd", DSYNC channels, and replaced files, one thread each.
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.channels.AsynchronousFileChannel;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;

public class JavaWork {
    static final int THREADS = 4;

    public static void main(String[] words) throws Exception {
        Path directory = Path.of(words[1]);
        switch (words[0]) {
            case "load" -> load(directory, Path.of(words[2]), Long.parseLong(words[3]));
            case "check" -> check(directory, Path.of(words[2]));
            default -> script(directory);
        }
    }

    static String record(long number) {
        return number + ":" + "j".repeat((int) (number * 11 % 1500)) + "\n";
    }

    static ByteBuffer bytes(String words) {
        return ByteBuffer.wrap(words.getBytes(StandardCharsets.UTF_8));
    }

    static void syncDirectory(Path directory) throws IOException {
        try (FileChannel channel = FileChannel.open(directory, StandardOpenOption.READ)) {
            channel.force(true);
        }
    }

    interface Keeper {
        void keep(long number) throws Exception;
    }

    static void load(Path directory, Path note, long first) throws Exception {
        FileChannel notes = FileChannel.open(note, StandardOpenOption.CREATE, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
        FileChannel appended = FileChannel.open(directory.resolve("0.journal"), StandardOpenOption.CREATE, StandardOpenOption.WRITE,
                StandardOpenOption.APPEND);
        RandomAccessFile random = new RandomAccessFile(directory.resolve("1.dat").toFile(), "rwd");
        random.seek(random.length());
        FileChannel synced = FileChannel.open(directory.resolve("2.journal"), StandardOpenOption.CREATE, StandardOpenOption.WRITE,
                StandardOpenOption.DSYNC);
        synced.position(synced.size());
        // What a crash left by half at the end becomes a line of its own: the next record would be part of it.
        appended.write(bytes("\n"));
        random.write('\n');
        synced.write(bytes("\n"));
        syncDirectory(directory);
        List<Keeper> keepers = List.of(number -> {
            appended.write(bytes(record(number)));
            appended.force(false);
        }, number -> random.write(record(number).getBytes(StandardCharsets.UTF_8)), number -> synced.write(bytes(record(number))),
                number -> replace(directory, number));
        List<Thread> threads = new ArrayList<>();
        for (int which = 0; which < THREADS; which++) {
            Keeper keeper = keepers.get(which);
            String name = which + " ";
            Thread thread = new Thread(() -> {
                try {
                    for (long number = first;; number++) {
                        keeper.keep(number);
                        synchronized (notes) {
                            notes.write(bytes(name + number + "\n"));
                        }
                    }
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    static void replace(Path directory, long number) throws IOException {
        Path next = directory.resolve("3.json.next");
        try (FileOutputStream out = new FileOutputStream(next.toFile())) {
            out.write(record(number).getBytes(StandardCharsets.UTF_8));
            out.getFD().sync();
        }
        Files.move(next, directory.resolve("3.json"), StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        syncDirectory(directory);
    }

    static void check(Path directory, Path lines) throws IOException {
        String[] names = {"0.journal", "1.dat", "2.journal"};
        List<Set<String>> found = new ArrayList<>();
        for (String name : names) {
            String all = Files.exists(directory.resolve(name))
                    ? new String(Files.readAllBytes(directory.resolve(name)), StandardCharsets.ISO_8859_1) : "";
            found.add(new HashSet<>(List.of(all.split("\n")).stream().map(it -> it + "\n").toList()));
        }
        long newest = -1, lost = 0;
        for (String line : Files.readAllLines(lines)) {
            int which = Integer.parseInt(line.substring(0, 1));
            long number = Long.parseLong(line.substring(2));
            if (which == THREADS - 1) {
                newest = Math.max(newest, number);
            } else if (!found.get(which).contains(record(number)) && lost++ < 5) {
                System.out.println(names[which] + ": record " + number + " was acknowledged, and is not there");
            }
        }
        String state = newest < 0 ? "0:" : Files.readString(directory.resolve("3.json"));
        long number = Long.parseLong(state.substring(0, state.indexOf(':')));
        if (number < newest || newest >= 0 && !state.equals(record(number))) {
            System.out.println("3.json has " + number + ", " + newest + " was acknowledged");
            lost++;
        }
        System.exit(lost == 0 ? 0 : 1);
    }

    static void script(Path directory) throws Exception {
        Random rng = new Random(5);
        try (FileChannel channel = FileChannel.open(directory.resolve("a.journal"), StandardOpenOption.CREATE, StandardOpenOption.READ,
                StandardOpenOption.WRITE); FileLock lock = channel.lock()) {
            for (int number = 0; number < 300; number++) {
                ByteBuffer[] parts = {bytes("head "), bytes(record(number))};
                if (number % 3 == 0) {
                    channel.write(parts);
                } else {
                    channel.write(bytes(record(number)), rng.nextInt(90_000));
                }
                if (number % 40 == 7) {
                    channel.truncate(rng.nextInt(100_000));
                }
                if (number % 10 == 0) {
                    channel.force(number % 20 == 0);
                }
            }
            System.out.println(channel.size() + " " + channel.position() + " " + lock.isValid());
        }
        try (RandomAccessFile file = new RandomAccessFile(directory.resolve("b.dat").toFile(), "rws")) {
            file.setLength(50_000);
            for (int number = 0; number < 100; number++) {
                file.seek(rng.nextInt(60_000));
                file.writeUTF("number " + number);
            }
            System.out.println(file.length());
        }
        maps(directory, rng);
        transfers(directory);
        asynchronous(directory, rng);
        Files.writeString(directory.resolve("d.json"), "[1, 2]", StandardOpenOption.CREATE, StandardOpenOption.SYNC);
        for (int number = 0; number < 20; number++) {
            replace(directory, number);
        }
        Process process = new ProcessBuilder("sh", "-c", "echo from a child; echo its error >&2")
                .redirectErrorStream(true).redirectOutput(directory.resolve("child.journal").toFile()).start();
        System.out.println("child: " + process.waitFor());
    }

    static void maps(Path directory, Random rng) throws IOException {
        try (FileChannel channel = FileChannel.open(directory.resolve("mapped.dat"), StandardOpenOption.CREATE, StandardOpenOption.READ,
                StandardOpenOption.WRITE)) {
            channel.write(bytes("before"), 0);
            channel.force(true);
            var map = channel.map(FileChannel.MapMode.READ_WRITE, 0, 65_536);
            for (int number = 0; number < 500; number++) {
                map.putInt(rng.nextInt(65_000), number);
            }
            map.force();
            channel.write(bytes("beside the map"), 100_000);
            channel.force(true);
        }
    }

    static void transfers(Path directory) throws IOException {
        try (FileChannel from = FileChannel.open(directory.resolve("a.journal"), StandardOpenOption.READ);
             FileChannel to = FileChannel.open(directory.resolve("copy.journal"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            long moved = from.transferTo(0, from.size(), to);
            to.transferFrom(from, moved, 100);
            to.force(true);
        }
        Files.copy(directory.resolve("a.journal"), directory.resolve("second.journal"), StandardCopyOption.COPY_ATTRIBUTES);
        Files.createLink(directory.resolve("linked.journal"), directory.resolve("second.journal"));
    }

    static void asynchronous(Path directory, Random rng) throws Exception {
        try (AsynchronousFileChannel channel = AsynchronousFileChannel.open(directory.resolve("async.dat"), StandardOpenOption.CREATE,
                StandardOpenOption.WRITE)) {
            List<java.util.concurrent.Future<Integer>> running = new ArrayList<>();
            for (int number = 0; number < 50; number++) {
                running.add(channel.write(bytes(record(number)), number * 2000L));
            }
            for (var future : running) {
                future.get();
            }
            channel.force(true);
        }
    }
}
