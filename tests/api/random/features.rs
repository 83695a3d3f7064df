//! What of SQL is not written yet, because it is known to fail.

/// Something that queries may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// Calls in the SELECT, WHERE or HAVING of a subquery that names columns of the query around it.
    CallsInCorrelated,
    /// Calls there that are given columns of the query around it.
    CallsOverOuter,
    /// Sort-merge joins of sorted tables.
    SortMergeOfSorted,
    /// `DISTINCT ON (ml_predict(…) …)`
    DistinctOnCalls,
    /// `ml_predict(TABLE ((SELECT …) UNION ALL (SELECT …)), …)`
    SetOperationAsInput,
    /// `ORDER BY … OFFSET …` without LIMIT, in a subquery.
    OffsetAlone,
    /// `GROUP BY ROLLUP (ml_predict(…) …)`
    CallsInGroupingSets,
    /// `ON ml_predict(MODEL m, a.x + b.x) = …`
    CallsOverBothSides,
    /// `VALUES (ml_predict(…), …)`
    CallsInValues,
}

/// The list to shorten: what is mended leaves it.
const NOT_YET: &[Feature] = &[
    Feature::CallsInCorrelated,
    Feature::CallsOverOuter,
    Feature::SortMergeOfSorted,
    Feature::DistinctOnCalls,
    Feature::SetOperationAsInput,
    Feature::OffsetAlone,
    Feature::CallsInGroupingSets,
    Feature::CallsOverBothSides,
    Feature::CallsInValues,
];

impl Feature {
    pub(super) fn is_on(self) -> bool {
        !NOT_YET.contains(&self)
    }
}
