import java.io.FileInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Paths;

/** Reads a file in parts of 4 KiB, and prints what was read and how long it took: {@code Moves stream|threads|channel FILE}. */
final class Moves {
    private static final int PART = 4096;

    public static void main(String[] args) throws Exception {
        String how = args[0];
        String file = args[1];
        long begin = System.nanoTime();
        long moved = how.equals("threads") ? inThreads(file) : how.equals("channel") ? byChannel(file) : byStream(file, 0, Long.MAX_VALUE);
        double ms = (System.nanoTime() - begin) / 1e6;
        System.out.printf("moved %d%n# elapsed %.3f ms%n", moved, ms);
    }

    private static long byStream(String file, long from, long most) throws IOException {
        byte[] part = new byte[PART];
        long moved = 0;
        try (FileInputStream in = new FileInputStream(file)) {
            in.getChannel().position(from);
            int n = 0;
            while (n >= 0 && moved < most) {
                n = in.read(part, 0, (int) Math.min(PART, most - moved));
                moved += Math.max(n, 0);
            }
        }
        return moved;
    }

    private static long byChannel(String file) throws IOException {
        ByteBuffer part = ByteBuffer.allocateDirect(PART);
        long moved = 0;
        try (FileChannel in = FileChannel.open(Paths.get(file))) {
            int n = 0;
            while (n >= 0) {
                part.clear();
                n = in.read(part);
                moved += Math.max(n, 0);
            }
        }
        return moved;
    }

    /** A quarter of the file in each of four threads. */
    private static long inThreads(String file) throws Exception {
        long quarter = Paths.get(file).toFile().length() / 4;
        long[] moved = new long[4];
        Thread[] threads = new Thread[4];
        for (int i = 0; i < 4; i++) {
            int at = i;
            threads[i] = new Thread(() -> {
                try {
                    moved[at] = byStream(file, at * quarter, quarter);
                } catch (IOException error) {
                    throw new java.io.UncheckedIOException(error);
                }
            });
            threads[i].start();
        }
        long sum = 0;
        for (int i = 0; i < 4; i++) {
            threads[i].join();
            sum += moved[i];
        }
        return sum;
    }
}
