package forebay;

import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.Locale;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;

/** Ends queries that would run for hours. */
final class Cancelling {
    private static final String ENDLESS = "SELECT value FROM ml_predict("
            + "(SELECT value FROM range(0, 40000000)), MODEL echo, DESCRIPTOR(value))";

    private final Checks checks;
    private final Connection connection;

    Cancelling(Checks checks, Connection connection) {
        this.checks = checks;
        this.connection = connection;
    }

    void run() {
        checks.step("cancel", this::canceled);
        checks.step("close", this::closed);
        checks.step("after all", () -> {
            try (Statement statement = connection.createStatement()) {
                checks.equal("the connection goes on", List.of(List.of(1L)),
                        Checks.rows(statement, "SELECT 1 AS n"));
            }
        });
    }

    private void canceled() throws SQLException {
        try (Statement statement = connection.createStatement()) {
            ResultSet found = statement.executeQuery(ENDLESS);
            checks.that("the first rows come", found.next());
            AtomicBoolean canceled = new AtomicBoolean();
            new Timer(true).schedule(new TimerTask() {
                @Override
                public void run() {
                    canceled.set(true);
                    checks.step("Statement.cancel", () -> cancelQuery(statement));
                }
            }, 300);
            String end = end(found);
            // Not before: rows that end by themselves would be rows that were lost.
            checks.that("the query goes on until it is canceled", canceled.get());
            // The driver may empty its queue first, and then there are just no more rows.
            if (!end.equals("no more rows")) {
                checks.equal("a canceled query's end", "canceled", end);
            }
        }
    }

    private static void cancelQuery(Statement statement) throws SQLException {
        try {
            statement.cancel();
        } catch (RuntimeException error) {
            if (!isRaceOfDriver(error)) {
                throw error;
            }
        }
    }

    /** The driver frees rows that another thread is just reading, and either of them notices, or what waits for
     * it: then it is said in one of the errors that this one is about. */
    private static boolean isRaceOfDriver(Throwable error) {
        if (error == null) {
            return false;
        }
        String said = error.toString();
        Throwable next = error instanceof SQLException sql ? sql.getNextException() : null;
        return said.contains("Ref count should be >= 1")
                || said.contains("RefCnt has gone negative")
                // Of memory that is gone, or is another batch's by now.
                || said.contains("(expected: range(0, ")
                || isRaceOfDriver(error.getCause())
                || isRaceOfDriver(next)
                || Stream.of(error.getSuppressed()).anyMatch(Cancelling::isRaceOfDriver);
    }

    /** Reads on, and says how that ended. The driver does not make an SQLException of it each time. */
    private static String end(ResultSet found) {
        try {
            while (found.next()) {
                found.getLong(1);
            }
            return "no more rows";
        } catch (SQLException | RuntimeException error) {
            String said = error.toString();
            boolean isSaid = said.toLowerCase(Locale.ROOT).contains("cancel");
            return isSaid || isRaceOfDriver(error) ? "canceled" : said;
        }
    }

    /** More often than a client may run queries. */
    private void closed() throws SQLException {
        for (int round = 0; round < 40; round++) {
            try (Statement statement = connection.createStatement();
                    ResultSet found = statement.executeQuery(ENDLESS)) {
                checks.that("rows of a query to close", found.next());
            }
        }
    }
}
