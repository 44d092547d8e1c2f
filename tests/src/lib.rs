//! The lab: what several tests and benches share. Nothing the product links.
