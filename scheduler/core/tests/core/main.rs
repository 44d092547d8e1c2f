//! Tests of the core: tables of small cases, and a random yard that checks every invariant after
//! every event.

#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "tests read SEED and print it")]

mod builders;
mod cadence;
mod held;
mod keyed;
mod overdue;
mod pace;
mod parking;
mod passes;
mod random;
mod refills;
mod retries;
mod rules;
mod sessions;
mod workspaces;
