package forebay;

import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/** What was checked, and what was not as it should be. */
final class Checks {
    /** Something that asks the server. */
    interface Step {
        void run() throws Exception;
    }

    private final List<String> failures = new ArrayList<>();
    private int made;

    /** Runs a step; what it throws is its failure, and others go on. */
    void step(String name, Step step) {
        try {
            step.run();
        } catch (Exception | LinkageError | AssertionError error) {
            fail(name, "threw " + error);
        }
    }

    void equal(String name, Object expected, Object found) {
        made++;
        if (!Objects.deepEquals(expected, found)) {
            fail(name, "expected " + shown(expected) + ", found " + shown(found));
        }
    }

    void that(String name, boolean holds) {
        equal(name, true, holds);
    }

    /** The step fails, and says so. */
    void refused(String name, String part, Step step) {
        made++;
        try {
            step.run();
            fail(name, "expected an error with '" + part + "', and there was none");
        } catch (Exception error) {
            if (!(error instanceof SQLException) || !said(error).contains(part)) {
                fail(name, "expected an SQLException with '" + part + "', found " + said(error));
            }
        }
    }

    private void fail(String name, String why) {
        failures.add(name + ": " + why);
    }

    /** Prints what failed; the exit status. */
    int report() {
        failures.forEach(failure -> System.out.println("FAILED " + failure));
        System.out.println(made + " checks, " + failures.size() + " failed");
        return failures.isEmpty() ? 0 : 1;
    }

    /** An error and its causes. */
    private static String said(Throwable error) {
        StringBuilder text = new StringBuilder();
        for (Throwable at = error; at != null; at = at.getCause()) {
            text.append(at).append("; ");
        }
        return text.toString();
    }

    private static String shown(Object value) {
        String text = Arrays.deepToString(new Object[] {value});
        String kind = value == null ? "" : " (" + value.getClass().getSimpleName() + ")";
        return text.substring(1, text.length() - 1) + kind;
    }

    /** All rows, as the driver's own objects. */
    static List<List<Object>> rows(ResultSet found) throws SQLException {
        int columns = found.getMetaData().getColumnCount();
        List<List<Object>> rows = new ArrayList<>();
        while (found.next()) {
            List<Object> row = new ArrayList<>();
            for (int at = 1; at <= columns; at++) {
                row.add(found.getObject(at));
            }
            rows.add(row);
        }
        return rows;
    }

    static List<List<Object>> rows(Statement statement, String sql) throws SQLException {
        try (ResultSet found = statement.executeQuery(sql)) {
            return rows(found);
        }
    }

    /** One column of all rows. */
    static List<Object> column(ResultSet found, String name) throws SQLException {
        List<Object> values = new ArrayList<>();
        try (found) {
            while (found.next()) {
                values.add(found.getObject(name));
            }
        }
        return values;
    }

    static List<String> names(ResultSetMetaData about) throws SQLException {
        List<String> names = new ArrayList<>();
        for (int at = 1; at <= about.getColumnCount(); at++) {
            names.add(about.getColumnLabel(at));
        }
        return names;
    }
}
