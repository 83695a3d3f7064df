package forebay;

import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.Locale;
import java.util.Timer;
import java.util.TimerTask;

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
            new Timer(true).schedule(new TimerTask() {
                @Override
                public void run() {
                    checks.step("Statement.cancel", statement::cancel);
                }
            }, 300);
            checks.that("a canceled query ends", endsCanceled(found));
        }
    }

    /** Reads on. The driver does not make an SQLException of it each time. */
    private static boolean endsCanceled(ResultSet found) {
        try {
            while (found.next()) {
                found.getLong(1);
            }
            return false;
        } catch (SQLException | RuntimeException error) {
            return error.toString().toLowerCase(Locale.ROOT).contains("cancel");
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
