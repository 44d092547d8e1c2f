//! The real program: its exit codes, what it writes where, what it asks of a yard.

mod asking;
mod broken_yard;
mod bucket;
mod harbor;
mod images;
mod matrix;
mod run;
mod sandbox_yard;
mod sandboxes;
mod schedules;
mod specs;
mod support;
