package forebay;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.Date;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Time;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.Instant;
import java.util.Arrays;
import java.util.Calendar;
import java.util.List;
import java.util.TimeZone;

/** Prepares statements, and binds a value of each type. */
final class Parameters {
    private static final Calendar UTC = Calendar.getInstance(TimeZone.getTimeZone("UTC"));

    private final Checks checks;
    private final Connection connection;

    /** Binds the first value of a statement. */
    private interface Binding {
        void to(PreparedStatement statement) throws SQLException;
    }

    Parameters(Checks checks, Connection connection) {
        this.checks = checks;
        this.connection = connection;
    }

    void run() {
        typed("BOOLEAN", true, s -> s.setBoolean(1, true));
        typed("TINYINT", (byte) -7, s -> s.setByte(1, (byte) -7));
        typed("SMALLINT", (short) -300, s -> s.setShort(1, (short) -300));
        typed("INTEGER", -70_000, s -> s.setInt(1, -70_000));
        typed("BIGINT", Long.MIN_VALUE, s -> s.setLong(1, Long.MIN_VALUE));
        typed("BIGINT", Long.MAX_VALUE, s -> s.setLong(1, Long.MAX_VALUE));
        typed("BIGINT", 7L, s -> s.setInt(1, 7));
        typed("INTEGER", 7, s -> s.setLong(1, 7));
        typed("REAL", 0.5, s -> s.setFloat(1, 0.5f));
        typed("DOUBLE", -1e300, s -> s.setDouble(1, -1e300));
        typed("DOUBLE", 2.0, s -> s.setInt(1, 2));
        typed("DECIMAL(20, 3)", new BigDecimal("-12345678901234567.125"),
                s -> s.setBigDecimal(1, new BigDecimal("-12345678901234567.125")));
        typed("VARCHAR", "it's; \u8def \ud83d\ude00", s -> s.setString(1, "it's; \u8def \ud83d\ude00"));
        typed("VARCHAR", "", s -> s.setString(1, ""));
        typed("BYTEA", new byte[] {0, -1, 7}, s -> s.setBytes(1, new byte[] {0, -1, 7}));
        typed("BYTEA", new byte[0], s -> s.setBytes(1, new byte[0]));
        typed("DATE", Date.valueOf("1969-07-20"), s -> s.setDate(1, Date.valueOf("1969-07-20")));
        typed("TIME", Time.valueOf("23:59:58"), s -> s.setTime(1, Time.valueOf("23:59:58")));
        Timestamp moment = Timestamp.valueOf("2026-02-03 04:05:06.789");
        typed("TIMESTAMP", moment, s -> s.setTimestamp(1, moment));
        Timestamp instant = Timestamp.from(Instant.parse("2026-02-03T04:05:06.789Z"));
        typed("TIMESTAMP WITH TIME ZONE", instant, s -> s.setTimestamp(1, instant, UTC));
        checks.step("untyped values", this::untyped);
        checks.step("nulls", this::nulls);
        checks.step("several executions", this::several);
        checks.step("what is known before", this::described);
        checks.step("ml_predict", this::predicted);
        checks.step("moments", this::moments);
        checks.refused("a value that is missing", "", () -> {
            try (PreparedStatement statement = connection.prepareStatement("SELECT ? + 1")) {
                statement.executeQuery();
            }
        });
    }

    /** The server is told the type, and tells it to the driver. */
    private void typed(String type, Object expected, Binding binding) {
        String name = type + " " + expected;
        checks.step(name, () -> {
            String sql = "SELECT CAST(? AS " + type + ") AS v";
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                binding.to(statement);
                try (ResultSet found = statement.executeQuery()) {
                    checks.that(name + " has a row", found.next());
                    Object value = expected instanceof byte[] ? found.getBytes(1)
                            : expected instanceof Timestamp && type.endsWith("ZONE")
                                    ? found.getTimestamp(1) : found.getObject(1);
                    checks.equal(name, expected, value);
                    checks.that(name + " is not null", !found.wasNull());
                    checks.that(name + " has one row", !found.next());
                }
            }
        });
    }

    private void untyped() throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement("SELECT ? AS text")) {
            statement.setString(1, "x'; DROP TABLE words; --");
            checks.equal("text", List.of(List.of("x'; DROP TABLE words; --")),
                    Checks.rows(statement.executeQuery()));
        }
    }

    private void nulls() throws SQLException {
        for (String type : new String[] {"BOOLEAN", "BIGINT", "DOUBLE", "DECIMAL(9, 2)", "VARCHAR",
            "BYTEA", "DATE", "TIME", "TIMESTAMP"}) {
            String sql = "SELECT CAST(? AS " + type + ") AS v";
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                statement.setNull(1, Types.NULL);
                try (ResultSet found = statement.executeQuery()) {
                    found.next();
                    checks.equal("null as " + type, null, found.getObject(1));
                    checks.that("null as " + type + " was null", found.wasNull());
                }
            }
        }
        String sql = "SELECT id FROM words WHERE word = ?";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setNull(1, Types.VARCHAR);
            checks.equal("nothing equals null", List.of(), Checks.rows(statement.executeQuery()));
            statement.setObject(1, null);
            checks.equal("nor an object", List.of(), Checks.rows(statement.executeQuery()));
        }
    }

    private void several() throws SQLException {
        String sql = "SELECT word FROM words WHERE id = ? OR word = ? ORDER BY id";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            statement.setLong(1, 2);
            statement.setString(2, "red");
            checks.equal("two values", List.of(List.of("red"), List.of("green")),
                    Checks.rows(statement.executeQuery()));
            statement.setLong(1, 1);
            statement.setString(2, "none");
            checks.equal("again", List.of(List.of("red")), Checks.rows(statement.executeQuery()));
            statement.clearParameters();
            statement.setObject(1, 2L);
            statement.setObject(2, "red");
            checks.equal("objects", 2, Checks.rows(statement.executeQuery()).size());
        }
    }

    private void described() throws SQLException {
        String sql = "SELECT id, word FROM words WHERE id > ? AND word LIKE ?";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            checks.equal("parameters", 2, statement.getParameterMetaData().getParameterCount());
            checks.equal("the first", Types.BIGINT,
                    statement.getParameterMetaData().getParameterType(1));
            checks.equal("the second", Types.VARCHAR,
                    statement.getParameterMetaData().getParameterType(2));
            checks.equal("columns", List.of("id", "word"), Checks.names(statement.getMetaData()));
        }
    }

    /** Compared with and written into columns of nanoseconds. */
    private void moments() throws SQLException {
        Timestamp moment = Timestamp.valueOf("2026-02-03 04:05:06.789");
        Time hour = Time.valueOf("23:59:58");
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("CREATE OR REPLACE TABLE moments (at TIMESTAMP, hour TIME)");
        }
        String insert = "INSERT INTO moments VALUES (?, ?)";
        try (PreparedStatement statement = connection.prepareStatement(insert)) {
            statement.setTimestamp(1, moment);
            statement.setTime(2, hour);
            checks.equal("a moment is written", 1, statement.executeUpdate());
        }
        String select = "SELECT CAST(at AS VARCHAR) AS at, CAST(hour AS VARCHAR) AS hour "
                + "FROM moments WHERE at = ? AND hour >= ?";
        try (PreparedStatement statement = connection.prepareStatement(select)) {
            statement.setTimestamp(1, moment);
            statement.setTime(2, hour);
            checks.equal("a moment is found", List.of(List.of("2026-02-03T04:05:06.789", "23:59:58")),
                    Checks.rows(statement.executeQuery()));
        }
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("DROP TABLE moments");
        }
    }

    private void predicted() throws SQLException {
        String sql = "SELECT text, label IS NOT NULL AS ok FROM ml_predict("
                + "(SELECT ? AS text), MODEL sentiment, DESCRIPTOR(text))";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (String text : List.of("a good day", "a bad one")) {
                statement.setString(1, text);
                checks.equal("a prediction", List.of(Arrays.asList(text, true)),
                        Checks.rows(statement.executeQuery()));
            }
        }
    }
}
