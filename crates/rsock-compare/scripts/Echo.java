import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Iterator;

/**
 * Both ends of an echo over selectors and channels of NIO, for `rsock compare`: server PORT BYTES,
 * or client PORT BYTES SECONDS, which prints the round trips per second.
 */
public class Echo {
    public static void main(String[] args) throws IOException {
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(args[1]));
        int size = Integer.parseInt(args[2]);
        if (args[0].equals("server")) {
            serve(address, size);
        } else {
            ask(address, size, Double.parseDouble(args[3]));
        }
    }

    private static void serve(InetSocketAddress address, int size) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.setOption(StandardSocketOptions.SO_REUSEADDR, true);
        listener.bind(address);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        ByteBuffer buffer = ByteBuffer.allocateDirect(size);
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext();) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel accepted = listener.accept();
                    if (accepted != null) {
                        prepare(accepted, selector);
                    }
                } else if (!answer((SocketChannel) key.channel(), buffer)) {
                    key.channel().close();
                }
            }
        }
    }

    private static void prepare(SocketChannel channel, Selector selector) throws IOException {
        channel.configureBlocking(false);
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        channel.register(selector, SelectionKey.OP_READ);
    }

    /** Sends back what has come; whether more may come. */
    private static boolean answer(SocketChannel channel, ByteBuffer buffer) throws IOException {
        buffer.clear();
        int count = channel.read(buffer);
        buffer.flip();
        while (buffer.hasRemaining()) {
            channel.write(buffer);
        }
        return count >= 0;
    }

    private static void ask(InetSocketAddress address, int size, double seconds)
            throws IOException {
        SocketChannel channel = SocketChannel.open(address);
        Selector selector = Selector.open();
        prepare(channel, selector);
        ByteBuffer message = ByteBuffer.allocateDirect(size);
        ByteBuffer answer = ByteBuffer.allocateDirect(size);
        // The first half of a second compiles the loop.
        trips(selector, channel, message, answer, 0.5);
        System.out.println("rate: " + trips(selector, channel, message, answer, seconds));
        channel.close();
    }

    /** The round trips per second. */
    private static double trips(Selector selector, SocketChannel channel, ByteBuffer message,
            ByteBuffer answer, double seconds) throws IOException {
        long start = System.nanoTime();
        long end = start + (long) (seconds * 1e9);
        long count = 0;
        while (System.nanoTime() < end) {
            message.clear();
            while (message.hasRemaining()) {
                message.put((byte) count);
            }
            message.flip();
            while (message.hasRemaining()) {
                channel.write(message);
            }
            answer.clear();
            while (answer.hasRemaining()) {
                selector.select();
                selector.selectedKeys().clear();
                if (channel.read(answer) < 0) {
                    throw new EOFException("the server has ended");
                }
            }
            message.rewind();
            answer.flip();
            if (!answer.equals(message)) {
                throw new IOException("a wrong answer");
            }
            count++;
        }
        return count / ((System.nanoTime() - start) / 1e9);
    }
}
