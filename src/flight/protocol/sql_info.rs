//! What clients ask about the server as a whole: its name, its grammar, its functions and limits.
//!
//! Tools of JDBC ask for all of it; what they are not told they take for an error.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::{
    SqlInfo, SqlNullOrdering, SqlOuterJoinsSupportLevel, SqlSupportedCaseSensitivity,
    SqlSupportedGroupBy, SqlSupportedResultSetType, SqlSupportedSubqueries,
    SqlSupportedTransaction, SqlSupportedUnions, SqlTransactionIsolationLevel, SupportedSqlGrammar,
};

/// Of lengths and numbers of things: there is none, or none that is known.
const NO_LIMIT: i64 = 0;

/// `ANSI92_ENTRY_SQL` of Flight SQL, which the arrow crates do not have by name.
const ANSI92_ENTRY: i32 = 0;

/// All that Flight SQL asks for a limit of.
const LIMITS: [SqlInfo; 20] = [
    SqlInfo::SqlMaxBinaryLiteralLength,
    SqlInfo::SqlMaxCharLiteralLength,
    SqlInfo::SqlMaxColumnNameLength,
    SqlInfo::SqlMaxColumnsInGroupBy,
    SqlInfo::SqlMaxColumnsInIndex,
    SqlInfo::SqlMaxColumnsInOrderBy,
    SqlInfo::SqlMaxColumnsInSelect,
    SqlInfo::SqlMaxColumnsInTable,
    SqlInfo::SqlMaxConnections,
    SqlInfo::SqlMaxCursorNameLength,
    SqlInfo::SqlMaxIndexLength,
    SqlInfo::SqlDbSchemaNameLength,
    SqlInfo::SqlMaxProcedureNameLength,
    SqlInfo::SqlMaxCatalogNameLength,
    SqlInfo::SqlMaxRowSize,
    SqlInfo::SqlMaxStatementLength,
    SqlInfo::SqlMaxStatements,
    SqlInfo::SqlMaxTableNameLength,
    SqlInfo::SqlMaxTablesInSelect,
    SqlInfo::SqlMaxUsernameLength,
];

/// Reserved words that are not the standard's.
const KEYWORDS: [&str; 10] = [
    "COPY",
    "DESCRIPTOR",
    "EXPLAIN",
    "EXTERNAL",
    "ILIKE",
    "LIMIT",
    "MODEL",
    "OFFSET",
    "QUALIFY",
    "SHOW",
];

/// Functions of the server that have the names and the meaning of X/Open's.
const NUMERIC: [&str; 16] = [
    "ABS", "ACOS", "ASIN", "ATAN", "ATAN2", "COS", "COT", "DEGREES", "EXP", "LOG10", "PI", "POWER",
    "RADIANS", "SIN", "SQRT", "TAN",
];
const TEXT: [&str; 14] = [
    "ASCII",
    "CHAR_LENGTH",
    "CHARACTER_LENGTH",
    "CONCAT",
    "LEFT",
    "LENGTH",
    "LOWER",
    "LTRIM",
    "OCTET_LENGTH",
    "REPEAT",
    "REPLACE",
    "RIGHT",
    "RTRIM",
    "UPPER",
];
const TIME: [&str; 4] = ["CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "NOW"];
const SYSTEM: [&str; 2] = ["COALESCE", "IFNULL"];

/// What this server can do.
pub(in crate::flight) static SQL_INFO: LazyLock<Option<SqlInfoData>> = LazyLock::new(|| {
    let mut info = SqlInfoDataBuilder::new();
    info.append(SqlInfo::FlightSqlServerName, "Forebay");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    info.append(SqlInfo::FlightSqlServerArrowVersion, arrow::ARROW_VERSION);
    info.append(SqlInfo::FlightSqlServerReadOnly, false);
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(SqlInfo::FlightSqlServerSubstrait, false);
    let no_transactions = SqlSupportedTransaction::None as i32;
    info.append(SqlInfo::FlightSqlServerTransaction, no_transactions);
    info.append(SqlInfo::FlightSqlServerCancel, true);
    info.append(SqlInfo::FlightSqlServerBulkIngestion, true);
    info.append(SqlInfo::FlightSqlServerIngestTransactionsSupported, false);
    info.append(SqlInfo::FlightSqlServerStatementTimeout, 0);
    info.append(SqlInfo::FlightSqlServerTransactionTimeout, 0);
    info.append(SqlInfo::SqlDdlCatalog, true);
    info.append(SqlInfo::SqlDdlSchema, true);
    info.append(SqlInfo::SqlDdlTable, true);
    let case = SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32;
    info.append(SqlInfo::SqlIdentifierCase, case);
    info.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    let quoted = SqlSupportedCaseSensitivity::SqlCaseSensitivityCaseInsensitive as i32;
    info.append(SqlInfo::SqlQuotedIdentifierCase, quoted);
    info.append(SqlInfo::SqlAllTablesAreSelectable, true);
    info.append(SqlInfo::SqlNullOrdering, SqlNullOrdering::SqlNullsSortedAtEnd as i32);
    info.append(SqlInfo::SqlSchemaTerm, "schema");
    info.append(SqlInfo::SqlCatalogTerm, "catalog");
    info.append(SqlInfo::SqlProcedureTerm, "model");
    info.append(SqlInfo::SqlCatalogAtStart, true);
    info.append(SqlInfo::SqlSupportsColumnAliasing, true);
    info.append(SqlInfo::SqlNullPlusNullIsNull, true);
    info.append(SqlInfo::SqlSupportsTableCorrelationNames, true);
    info.append(SqlInfo::SqlSupportsExpressionsInOrderBy, true);
    info.append(SqlInfo::SqlSupportsOrderByUnrelated, true);
    info.append(SqlInfo::SqlSupportsLikeEscapeClause, true);
    info.append(SqlInfo::SqlSupportsNonNullableColumns, true);
    info.append(SqlInfo::SqlTransactionsSupported, false);
    info.append(SqlInfo::SqlBatchUpdatesSupported, true);
    info.append(SqlInfo::SqlSavepointsSupported, false);
    info.append(SqlInfo::SqlCorrelatedSubqueriesSupported, true);
    grammar(&mut info);
    names(&mut info);
    for limit in LIMITS {
        info.append(limit, NO_LIMIT);
    }
    info.build().inspect_err(|error| tracing::error!("what the server can do: {error}")).ok()
});

/// Levels and kinds, of which each is a bit.
fn grammar(info: &mut SqlInfoDataBuilder) {
    use SqlSupportedSubqueries::{
        SqlSubqueriesInComparisons, SqlSubqueriesInExists, SqlSubqueriesInIns,
    };
    let bits = |values: &[i32]| values.iter().fold(0, |bits, value| bits | 1 << value);
    let none = 0;
    let grammar = bits(&[
        SupportedSqlGrammar::SqlMinimumGrammar as i32,
        SupportedSqlGrammar::SqlCoreGrammar as i32,
    ]);
    info.append(SqlInfo::SqlSupportedGrammar, grammar);
    info.append(SqlInfo::SqlAnsi92SupportedLevel, bits(&[ANSI92_ENTRY]));
    let group_by = bits(&[
        SqlSupportedGroupBy::SqlGroupByUnrelated as i32,
        SqlSupportedGroupBy::SqlGroupByBeyondSelect as i32,
    ]);
    info.append(SqlInfo::SqlSupportedGroupBy, group_by);
    let joins = bits(&[
        SqlOuterJoinsSupportLevel::SqlLimitedOuterJoins as i32,
        SqlOuterJoinsSupportLevel::SqlFullOuterJoins as i32,
    ]);
    info.append(SqlInfo::SqlOuterJoinsSupportLevel, joins);
    let subqueries = [SqlSubqueriesInComparisons, SqlSubqueriesInExists, SqlSubqueriesInIns];
    info.append(SqlInfo::SqlSupportedSubqueries, bits(&subqueries.map(|kind| kind as i32)));
    let unions = [SqlSupportedUnions::SqlUnion, SqlSupportedUnions::SqlUnionAll];
    info.append(SqlInfo::SqlSupportedUnions, bits(&unions.map(|kind| kind as i32)));
    // The bits are for names in calls of procedures, indexes and privileges, of which there are none.
    info.append(SqlInfo::SqlSchemasSupportedActions, none);
    info.append(SqlInfo::SqlCatalogsSupportedActions, none);
    info.append(SqlInfo::SqlSupportedPositionedCommands, none);
    let forward = bits(&[SqlSupportedResultSetType::SqlResultSetTypeForwardOnly as i32]);
    info.append(SqlInfo::SqlSupportedResultSetTypes, forward);
    let isolation = SqlTransactionIsolationLevel::SqlTransactionNone as i32;
    info.append(SqlInfo::SqlDefaultTransactionIsolation, i64::from(isolation));
    info.append(SqlInfo::SqlSupportedTransactionsIsolationLevels, bits(&[isolation]));
    for no in [
        SqlInfo::SqlSupportsDifferentTableCorrelationNames,
        SqlInfo::SqlSupportsIntegrityEnhancementFacility,
        SqlInfo::SqlMaxRowSizeIncludesBlobs,
        SqlInfo::SqlSelectForUpdateSupported,
        SqlInfo::SqlStoredProceduresSupported,
        SqlInfo::SqlStoredFunctionsUsingCallSyntaxSupported,
        SqlInfo::SqlNamedParametersSupported,
        SqlInfo::SqlLocatorsUpdateCopy,
        SqlInfo::SqlDataDefinitionCausesTransactionCommit,
        SqlInfo::SqlDataDefinitionsInTransactionsIgnored,
    ] {
        info.append(no, false);
    }
    // Of the function CONVERT, which there is none of.
    info.append(SqlInfo::SqlSupportsConvert, BTreeMap::<i32, Vec<i32>>::new());
}

fn names(info: &mut SqlInfoDataBuilder) {
    info.append(SqlInfo::SqlSearchStringEscape, "\\");
    info.append(SqlInfo::SqlExtraNameCharacters, "");
    for (kind, names) in [
        (SqlInfo::SqlKeywords, &KEYWORDS[..]),
        (SqlInfo::SqlNumericFunctions, &NUMERIC),
        (SqlInfo::SqlStringFunctions, &TEXT),
        (SqlInfo::SqlDatetimeFunctions, &TIME),
        (SqlInfo::SqlSystemFunctions, &SYSTEM),
    ] {
        info.append(kind, names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::prelude::SessionContext;

    #[test]
    fn functions_that_are_told_of_are_there() {
        assert!(SQL_INFO.is_some());
        let state = SessionContext::new().state();
        for name in NUMERIC.iter().chain(&TEXT).chain(&TIME).chain(&SYSTEM) {
            assert!(state.scalar_functions().contains_key(&name.to_lowercase()), "{name}");
        }
    }
}
