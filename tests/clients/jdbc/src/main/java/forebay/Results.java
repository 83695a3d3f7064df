package forebay;

import java.math.BigDecimal;
import java.sql.Array;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.time.Instant;
import java.util.Calendar;
import java.util.List;
import java.util.Map;
import java.util.TimeZone;
import java.util.TreeMap;

/** Reads predictions, vectors, structs, decimals, and times of all zones. */
final class Results {
    private final Checks checks;
    private final Connection connection;

    /** Reads the only row. */
    private interface Reading {
        void of(ResultSet row) throws SQLException;
    }

    Results(Checks checks, Connection connection) {
        this.checks = checks;
        this.connection = connection;
    }

    void run() {
        checks.step("predictions", this::predictions);
        for (String type : new String[] {"FixedSizeList(3, Float32)", "List(Float32)",
            "LargeList(Float32)"}) {
            one("SELECT arrow_cast([1, 2, 0.5], '" + type + "') AS v", row -> vector(type, row));
        }
        one("SELECT [[1, 2], [3]] AS v", row -> checks.equal("lists of lists", 2,
                ((Object[]) row.getArray(1).getArray()).length));
        one("SELECT named_struct('a', 1, 'b', 'x') AS s", row -> checks.equal("a struct",
                "{a=1, b=x}", new TreeMap<>((Map<?, ?>) row.getObject(1)).toString()));
        one("SELECT CAST('-1.50' AS DECIMAL(10, 2)) AS d, CAST('1.5' AS DECIMAL(60, 3)) AS e", row -> {
            checks.equal("a decimal", new BigDecimal("-1.50"), row.getBigDecimal(1));
            checks.equal("a long decimal", new BigDecimal("1.500"), row.getObject(2));
            checks.equal("its precision", 10, row.getMetaData().getPrecision(1));
            checks.equal("its scale", 2, row.getMetaData().getScale(1));
        });
        checks.step("times", this::times);
        for (String type : new String[] {"Utf8", "LargeUtf8", "Utf8View",
            "Dictionary(Int32, Utf8)"}) {
            one("SELECT arrow_cast('\u8def', '" + type + "') AS t",
                    row -> checks.equal(type, "\u8def", row.getString(1)));
        }
        for (String type : new String[] {"Binary", "LargeBinary", "BinaryView",
            "FixedSizeBinary(2)"}) {
            one("SELECT arrow_cast(X'00FF', '" + type + "') AS b",
                    row -> checks.equal(type, new byte[] {0, -1}, row.getBytes(1)));
        }
        one("SELECT NULL AS n", row -> checks.equal("null", null, row.getObject(1)));
        one("SELECT INTERVAL '1' MONTH AS i", row -> checks.that("an interval",
                row.getString(1) != null));
        one("SELECT map {'a': 1} AS m", row -> checks.that("a map", row.getObject(1) != null));
        checks.step("many rows", this::many);
        checks.refused("a mistake", "did you mean 'words'", () -> one0("SELECT * FROM wordz"));
        checks.refused("a failing row", "Divide by zero",
                () -> one0("SELECT 1 / (value - 5) FROM range(0, 9)"));
        checks.step("the connection goes on", () -> one("SELECT 1 AS n",
                row -> checks.equal("one", 1L, row.getLong(1))));
    }

    private void one(String sql, Reading reading) {
        checks.step(sql, () -> {
            try (Statement statement = connection.createStatement();
                    ResultSet found = statement.executeQuery(sql)) {
                checks.that(sql + " has a row", found.next());
                reading.of(found);
            }
        });
    }

    private void one0(String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            Checks.rows(statement, sql);
        }
    }

    private void predictions() throws SQLException {
        try (Statement statement = connection.createStatement()) {
            checks.equal("predictions",
                    List.of(List.of(1L, true), List.of(2L, true), List.of(3L, true)),
                    Checks.rows(statement, "SELECT id, digest IS NOT NULL AS ok FROM ml_predict("
                            + "TABLE words, MODEL echo, DESCRIPTOR(id)) ORDER BY id"));
        }
    }

    private void vector(String type, ResultSet row) throws SQLException {
        Array array = row.getArray(1);
        checks.equal(type, new Object[] {1f, 2f, 0.5f}, array.getArray());
        try (ResultSet elements = array.getResultSet()) {
            checks.equal(type + " as rows", 3, Checks.rows(elements).size());
        }
    }

    private void times() throws SQLException {
        String sql = "SELECT TIMESTAMP '2026-02-03 04:05:06.789' AS here, "
                + "arrow_cast('2026-02-03T04:05:06.789Z', "
                + "'Timestamp(Microsecond, Some(\"UTC\"))') AS there, "
                + "DATE '2026-02-03' AS day, TIME '04:05:06.789' AS hour";
        one(sql, row -> {
            Instant instant = Instant.parse("2026-02-03T04:05:06.789Z");
            checks.equal("without zone", Timestamp.valueOf("2026-02-03 04:05:06.789"),
                    row.getTimestamp("here"));
            checks.equal("with a calendar", instant, row.getTimestamp("here",
                    Calendar.getInstance(TimeZone.getTimeZone("UTC"))).toInstant());
            checks.equal("with zone", instant, row.getTimestamp("there").toInstant());
            checks.equal("a date", "2026-02-03", row.getDate("day").toString());
            checks.equal("as a local date", java.time.LocalDate.of(2026, 2, 3),
                    row.getDate("day").toLocalDate());
            checks.equal("a time", "04:05:06.789", row.getTime("hour").toString());
        });
    }

    private void many() throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(100);
            try (ResultSet found = statement.executeQuery("SELECT value FROM range(0, 100000)")) {
                long sum = 0;
                while (found.next()) {
                    sum += found.getLong("value");
                }
                checks.equal("the sum of many", 4_999_950_000L, sum);
            }
            statement.setMaxRows(5);
            checks.equal("the first rows alone", 5,
                    Checks.rows(statement, "SELECT value FROM range(0, 100)").size());
        }
    }
}
