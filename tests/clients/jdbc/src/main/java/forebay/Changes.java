package forebay;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;

/** Definitions, updates with their counts, batches. */
final class Changes {
    private final Checks checks;
    private final Connection connection;
    private final String table = "t" + System.nanoTime();

    Changes(Checks checks, Connection connection) {
        this.checks = checks;
        this.connection = connection;
    }

    void run() {
        checks.step("changes", () -> {
            try (Statement statement = connection.createStatement()) {
                changes(statement);
            }
        });
        checks.step("prepared changes", this::prepared);
        checks.step("the end", () -> {
            try (Statement statement = connection.createStatement()) {
                checks.equal("dropped", 0, statement.executeUpdate("DROP TABLE " + table));
                checks.refused("it is gone", "doesn't exist",
                        () -> statement.executeUpdate("DROP TABLE " + table));
            }
        });
    }

    private void changes(Statement statement) throws SQLException {
        checks.equal("created", 0,
                statement.executeUpdate("CREATE TABLE " + table + " (a BIGINT, b VARCHAR)"));
        checks.equal("inserted", 2,
                statement.executeUpdate("INSERT INTO " + table + " VALUES (1, 'x'), (2, NULL)"));
        checks.that("no rows", !statement.execute("INSERT INTO " + table + " VALUES (3, 'z')"));
        checks.equal("counted", 1, statement.getUpdateCount());
        checks.that("rows", statement.execute("SELECT a FROM " + table));
        checks.equal("rows of execute", 3, Checks.rows(statement.getResultSet()).size());
        checks.equal("inserted from a query", 3, statement.executeUpdate("INSERT INTO " + table
                + " SELECT value, 'v' FROM range(4, 7)"));
        checks.equal("all", List.of(List.of(21L, 6L)), sums(statement));
    }

    private List<List<Object>> sums(Statement statement) throws SQLException {
        return Checks.rows(statement, "SELECT sum(a) AS s, count(*) AS n FROM " + table);
    }

    private void prepared() throws SQLException {
        String sql = "INSERT INTO " + table + " VALUES (?, ?)";
        try (PreparedStatement insert = connection.prepareStatement(sql);
                Statement statement = connection.createStatement()) {
            insert.setLong(1, 100);
            insert.setString(2, "p");
            checks.equal("one inserted", 1, insert.executeUpdate());
            for (int row = 0; row < 3; row++) {
                insert.setLong(1, row);
                insert.setString(2, "row " + row);
                insert.addBatch();
            }
            int changed = 0;
            for (int count : insert.executeBatch()) {
                changed += count;
            }
            checks.equal("a batch of values", 3, changed);
            checks.equal("all with them", List.of(List.of(124L, 10L)), sums(statement));
        }
    }
}
