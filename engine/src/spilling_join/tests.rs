//! Against DataFusion's join with all the memory it likes.

mod cases;
mod ends;
