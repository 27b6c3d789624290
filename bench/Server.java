import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;

/** Serves the files of a folder from memory: {@code java Server.java PORT FOLDER}. */
public class Server {
    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[1]);
        var address = new InetSocketAddress(InetAddress.getByName("127.0.0.1"), Integer.parseInt(args[0]));
        HttpServer server = HttpServer.create(address, 0);
        try (var files = Files.list(folder)) {
            for (Path file : files.filter(Files::isRegularFile).toList()) {
                byte[] bytes = Files.readAllBytes(file);
                server.createContext("/" + file.getFileName(), exchange -> {
                    exchange.sendResponseHeaders(200, bytes.length);
                    try (var body = exchange.getResponseBody()) {
                        body.write(bytes);
                    }
                });
            }
        }
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.start();
    }
}
