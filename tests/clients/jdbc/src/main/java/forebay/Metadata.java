package forebay;

import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.util.ArrayList;
import java.util.List;

/** What a tool shows in its tree of catalogs, schemas, tables and columns. */
final class Metadata {
    private final Checks checks;
    private final Connection connection;
    private final DatabaseMetaData about;

    Metadata(Checks checks, Connection connection) throws SQLException {
        this.checks = checks;
        this.connection = connection;
        about = connection.getMetaData();
    }

    void run() {
        checks.step("something to be listed", () -> change(Kinds.TABLE,
                "CREATE OR REPLACE VIEW seen AS SELECT id FROM words"));
        checks.step("the server", this::server);
        checks.step("catalogs and schemas", this::catalogs);
        checks.step("tables", this::tables);
        checks.step("columns", this::columns);
        checks.step("keys", this::keys);
        checks.step("nothing to be listed", () -> change("DROP VIEW seen", "DROP TABLE kinds"));
    }

    private void change(String... definitions) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            for (String definition : definitions) {
                statement.executeUpdate(definition);
            }
        }
    }

    private void server() throws SQLException {
        checks.equal("product", "Forebay", about.getDatabaseProductName());
        checks.that("version", about.getDatabaseProductVersion().matches("\\d+\\.\\d+\\.\\d+.*"));
        checks.equal("quotes", "\"", about.getIdentifierQuoteString());
        checks.equal("separator", ".", about.getCatalogSeparator());
        checks.that("quoted names are as they are", about.supportsMixedCaseQuotedIdentifiers());
        checks.that("writes", !about.isReadOnly());
        checks.that("no transactions", !about.supportsTransactions());
        checks.that("auto-commit", connection.getAutoCommit());
        checks.that("group by", about.supportsGroupBy());
        checks.that("union", about.supportsUnion() && about.supportsUnionAll());
        checks.that("outer joins", about.supportsFullOuterJoins() && about.supportsOuterJoins());
        checks.that("subqueries", about.supportsSubqueriesInExists()
                && about.supportsSubqueriesInIns() && about.supportsSubqueriesInComparisons());
        checks.that("catalogs and schemas in statements", about.supportsCatalogsInDataManipulation()
                && about.supportsSchemasInDataManipulation()
                && about.supportsSchemasInTableDefinitions());
        checks.that("SQL-92", about.supportsANSI92EntryLevelSQL());
        checks.that("functions", about.getNumericFunctions().contains("ABS")
                && about.getStringFunctions().contains("UPPER"));
        checks.that("keywords", about.getSQLKeywords().contains("MODEL"));
    }

    private void catalogs() throws SQLException {
        checks.equal("catalogs", List.of("datafusion"), Checks.column(about.getCatalogs(), "TABLE_CAT"));
        List<Object> schemas = Checks.column(about.getSchemas(), "TABLE_SCHEM");
        checks.that("schemas " + schemas,
                schemas.containsAll(List.of("public", "information_schema", "forebay")));
        checks.equal("schemas by pattern", List.of("public"),
                Checks.column(about.getSchemas("datafusion", "pub%"), "TABLE_SCHEM"));
        checks.equal("schemas of no catalog", List.of(),
                Checks.column(about.getSchemas("nothing", "%"), "TABLE_SCHEM"));
        List<Object> kinds = Checks.column(about.getTableTypes(), "TABLE_TYPE");
        checks.that("kinds of tables " + kinds, kinds.containsAll(List.of("TABLE", "VIEW")));
    }

    private void tables() throws SQLException {
        checks.equal("tables by name", List.of("words"), tables("datafusion", "public", "words"));
        checks.equal("tables by pattern", List.of("words"), tables(null, "publi_", "wor%"));
        checks.equal("no catalog is that of tables without one", List.of(),
                tables("", null, "words"));
        checks.equal("an escaped underscore", List.of(), tables(null, null, "w\\_rds"));
        checks.equal("tables of a kind", List.of(), tables(null, "public", "words", "VIEW"));
        checks.equal("views", List.of("seen"), tables(null, "public", "%", "VIEW"));
        checks.that("information_schema",
                tables(null, "information_schema", "%").contains("columns"));
        try (ResultSet found = about.getTables(null, "public", "words", null)) {
            checks.that("there is a row", found.next());
            checks.equal("the table's catalog", "datafusion", found.getString("TABLE_CAT"));
            checks.equal("the table's schema", "public", found.getString("TABLE_SCHEM"));
            checks.equal("the table's kind", "TABLE", found.getString("TABLE_TYPE"));
        }
    }

    private List<Object> tables(String catalog, String schema, String table, String... kinds)
            throws SQLException {
        String[] wanted = kinds.length == 0 ? null : kinds;
        return Checks.column(about.getTables(catalog, schema, table, wanted), "TABLE_NAME");
    }

    private void columns() throws SQLException {
        List<String> found = new ArrayList<>();
        try (ResultSet columns = about.getColumns(null, "public", "kinds", "%")) {
            while (columns.next()) {
                found.add(String.join(" ", columns.getString("COLUMN_NAME"),
                        columns.getString("TYPE_NAME"), columns.getString("DATA_TYPE"),
                        columns.getString("COLUMN_SIZE"), columns.getString("DECIMAL_DIGITS"),
                        columns.getString("ORDINAL_POSITION"), columns.getString("IS_NULLABLE")));
            }
        }
        checks.equal("columns", Kinds.COLUMNS, String.join("\n", found));
        checks.equal("columns by pattern", List.of("word"),
                Checks.column(about.getColumns(null, null, "words", "w%"), "COLUMN_NAME"));
        checks.equal("columns of no table", List.of(),
                Checks.column(about.getColumns(null, null, "nothing", null), "COLUMN_NAME"));
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT id AS a, word FROM words")) {
            checks.equal("labels", List.of("a", "word"), Checks.names(rows.getMetaData()));
            checks.equal("type of a", Types.BIGINT, rows.getMetaData().getColumnType(1));
            checks.equal("type of word", Types.VARCHAR, rows.getMetaData().getColumnType(2));
        }
    }

    private void keys() throws SQLException {
        for (ResultSet found : new ResultSet[] {
            about.getPrimaryKeys(null, "public", "words"),
            about.getImportedKeys(null, "public", "words"),
            about.getExportedKeys(null, "public", "words"),
            about.getCrossReference(null, "public", "words", null, "public", "words"),
            about.getIndexInfo(null, "public", "words", false, true),
            about.getProcedures(null, null, "%"),
            about.getFunctions(null, null, "%"),
            about.getTablePrivileges(null, "public", "words"),
            about.getBestRowIdentifier(null, "public", "words", 0, true),
            about.getVersionColumns(null, "public", "words"),
            about.getUDTs(null, null, "%", null),
        }) {
            try (found) {
                checks.that("none of " + Checks.names(found.getMetaData()), !found.next());
            }
        }
    }
}
