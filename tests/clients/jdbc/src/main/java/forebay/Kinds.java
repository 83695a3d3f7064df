package forebay;

/** A table with a column of each type, and what JDBC says of it. */
final class Kinds {
    static final String TABLE = "CREATE OR REPLACE TABLE kinds (flag BOOLEAN, tiny TINYINT, "
            + "small SMALLINT, whole INT NOT NULL, big BIGINT, single REAL, real DOUBLE, "
            + "exact DECIMAL(10, 2), text VARCHAR, bytes BYTEA, day DATE, hour TIME, "
            + "moment TIMESTAMP, instant TIMESTAMP WITH TIME ZONE)";

    /** Name, type, number of the type, size, digits, position, and whether it may be null. */
    static final String COLUMNS = """
            flag BOOLEAN 16 null null 1 YES
            tiny TINYINT -6 3 0 2 YES
            small SMALLINT 5 5 0 3 YES
            whole INTEGER 4 10 0 4 NO
            big BIGINT -5 19 0 5 YES
            single FLOAT 6 null null 6 YES
            real DOUBLE 8 null null 7 YES
            exact DECIMAL 3 10 2 8 YES
            text VARCHAR 12 65536 null 9 YES
            bytes VARBINARY -3 65536 null 10 YES
            day DATE 91 10 0 11 YES
            hour TIME 92 18 9 12 YES
            moment TIMESTAMP 93 29 9 13 YES
            instant TIMESTAMP 93 29 9 14 YES""";

    private Kinds() {}
}
