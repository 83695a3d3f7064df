//! Queries on clusters of real processes that are killed, paused, cut off and misled meanwhile.
//!
//! Each test first runs its query undisturbed, then disturbs it at moments that are parts of the
//! tasks this took, shows that the disturbance happened while the query ran, and compares all rows.
//! `make test` runs the short set; `make chaos` (`FOREBAY_CHAOS=long`) the same tests with more
//! moments.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where at once")]

mod cluster {
    mod arrivals;
    mod cuts;
    mod damage;
    mod delta;
    mod endings;
    mod history;
    mod kills;
    mod limits;
    mod load;
    mod lost_devices;
    mod memory;
    mod merges;
    mod neighbours;
    mod options;
    mod packages;
    mod pauses;
    mod restarts;
    mod rooms;
    mod setup;
    mod short_memory;
    mod shuffles;
    mod sorts;
    mod takeovers;
    mod tls;
    mod tpch;
    mod upsets;
    mod versions;
    mod windows;
    mod writes;
}
