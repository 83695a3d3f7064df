package forebay;

import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;
import java.util.Timer;
import java.util.TimerTask;

/** Ends queries that would run for hours. */
final class Cancelling {
    private static final int ROWS = 40_000_000;
    private static final String ENDLESS = "SELECT value FROM ml_predict("
            + "(SELECT value FROM range(0, " + ROWS + ")), MODEL echo, DESCRIPTOR(value))";

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
            checks.that("a canceled query ends early", endsEarly(found));
        }
    }

    /** Reads on. Whether the driver then throws, and what, differs from time to time; rows are left. */
    private static boolean endsEarly(ResultSet found) {
        int rows = 1;
        try {
            while (found.next()) {
                rows++;
            }
        } catch (SQLException | RuntimeException error) {
            System.out.println("a canceled query ends with " + error);
        }
        return rows < ROWS;
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
