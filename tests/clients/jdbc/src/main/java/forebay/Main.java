package forebay;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.Map;
import java.util.TreeMap;

/** Checks a server, given as arguments {@code key=value}, and prints what was not as it should be. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new TreeMap<>();
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            given.put(argument.substring(0, at), argument.substring(at + 1));
        }
        Checks checks = new Checks();
        if (given.containsKey("guarded")) {
            new Logins(checks, given).run();
        }
        if (given.containsKey("url")) {
            checks.step("everything", () -> open(checks, given.get("url")));
        }
        System.exit(checks.report());
    }

    private static void open(Checks checks, String url) throws Exception {
        Connection ended;
        try (Connection connection = DriverManager.getConnection(url)) {
            ended = connection;
            checks.that("the connection is valid", connection.isValid(10));
            new Metadata(checks, connection).run();
            new Parameters(checks, connection).run();
            new Results(checks, connection).run();
            new Changes(checks, connection).run();
        }
        checks.that("a closed connection is closed", ended.isClosed());
        cancel(checks, url);
    }

    /** On a connection of its own: rows that the driver frees too often or never are found when it closes. */
    private static void cancel(Checks checks, String url) throws SQLException {
        Connection connection = DriverManager.getConnection(url);
        new Cancelling(checks, connection).run();
        try {
            connection.close();
        } catch (SQLException error) {
            if (!error.toString().contains("Failed to clean up client resources")) {
                throw error;
            }
        }
    }
}
