use std::sync::Mutex;
use std::time::Instant;
static ALL: Mutex<std::collections::BTreeMap<(String, String), (u64, u64)>> = Mutex::new(std::collections::BTreeMap::new());
pub struct Span(Instant, &'static str, u32);
impl Span {
    pub fn new(name: &'static str) -> Self { Self(Instant::now(), name, 0) }
    pub fn mark(&mut self, what: &str) {
        let us = self.0.elapsed().as_nanos() as u64;
        self.0 = Instant::now();
        self.2 += 1;
        let mut all = ALL.lock().unwrap();
        let e = all.entry((self.1.to_owned(), format!("{:02} {what}", self.2))).or_default();
        e.0 += us; e.1 += 1;
    }
}
pub fn dump() {
    use std::io::Write;
    child_dump();
    for ((a, b), (us, n)) in ALL.lock().unwrap().iter() {
        let _ = writeln!(std::io::stderr(), "SPAN {a:12} {b:24} {:8} us  x{n}", us / n / 1000);
    }
}

use std::sync::atomic::{AtomicU64, AtomicPtr, Ordering};
static CHILD: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
pub fn child_init() {
    let p = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ|libc::PROT_WRITE, libc::MAP_SHARED|libc::MAP_ANONYMOUS, -1, 0) };
    CHILD.store(p.cast(), Ordering::SeqCst);
}
pub fn now() -> u64 { let mut t: libc::timespec = unsafe { std::mem::zeroed() }; unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) }; t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64 }
pub fn child_mark(step: usize, last: &mut u64) {
    let p = CHILD.load(Ordering::SeqCst); if p.is_null() { return }
    let t = now();
    unsafe { (*p.add(step)).fetch_add(t - *last, Ordering::Relaxed); (*p.add(step+100)).fetch_add(1, Ordering::Relaxed); }
    *last = t;
}
pub fn child_dump() {
    use std::io::Write;
    let p = CHILD.load(Ordering::SeqCst); if p.is_null() { return }
    for i in 0..100 { let (s, n) = unsafe { ((*p.add(i)).load(Ordering::Relaxed), (*p.add(i+100)).load(Ordering::Relaxed)) };
      if n > 0 { let _ = writeln!(std::io::stderr(), "SPAN child {i:3} {:?} {:8} us x{n}", crate::broker::protocol::Step::from_byte(i as u8), s / n / 1000); } }
}
