use proptest::prelude::*;
use rollout::MilliCpu;
use rollout::quantity::{Limit, Request};

use super::*;

const MIB: u64 = 1 << 20;

/// `request` and `limit` of memory and of disk, in MiB.
fn resources(memory: (u64, u64), disk: (u64, u64)) -> Resources {
    let bytes = |mib| Bytes(mib * MIB);
    Resources {
        request: Request { cpu: MilliCpu(100), memory: bytes(memory.0), disk: bytes(disk.0) },
        limit: Limit { cpu: MilliCpu(100), memory: bytes(memory.1), disk: bytes(disk.1), pids: 64 },
    }
}

fn alone(own: Resources) -> Asked {
    Asked { own, sandbox: own }
}

fn held(mib: &[u64]) -> HeldMemory {
    let mut held = HeldMemory::default();
    mib.iter().for_each(|&mib| held.observe(Bytes(mib * MIB), None));
    held
}

#[test]
fn buckets_are_a_quarter_of_a_power_of_two_wide() {
    let of = |bytes| Bucket::of(Bytes(bytes)).index();
    for (bytes, bucket) in [
        (0, 0),
        (1, 1),
        (3, 3),
        (4, 4),
        (7, 7),
        (8, 8),
        (9, 8),
        (10, 9),
        (15, 11),
        (16, 12),
        (64 * MIB - 1, 99),
        (64 * MIB, 100),
        (80 * MIB - 1, 100),
        (80 * MIB, 101),
    ] {
        assert_eq!(of(bytes), bucket, "{bytes}");
    }
    assert_eq!(u32::from(of(u64::MAX)), BUCKETS_MAX - 1);
    assert_eq!(Bucket::from_index(BUCKETS_MAX.into()), None);
    assert_eq!(Bucket::from_index(7), Some(Bucket::of(Bytes(7))));
}

#[test]
fn of_no_attempt_nothing_is_known() {
    let none = HeldMemory::default();
    assert_eq!((none.attempts(), none.most(), none.p95(), none.kernel_peak()), (0, None, None, None));
    assert_eq!(told(None, &none), None);
    assert_eq!(advise(&alone(Resources::default()), &none), None);
}

#[test]
fn advice_follows_what_is_kept_for_the_step() {
    let large_disk = |memory| alone(resources(memory, (1024, 1024)));
    let files = |memory, disk| alone(resources(memory, disk));
    let several = |mib, count| held(&vec![mib; count]);
    let less = |mib| Some((AdviceCode::AsksTooMuch, REQUEST_MEMORY, mib));
    let more = |field, mib| Some((AdviceCode::AsksTooLittle, field, mib));
    for (name, asked, held, expected) in [
        ("right", large_disk((128, 512)), several(100, 50), None),
        ("twice as much is right", large_disk((200, 512)), several(100, 50), None),
        ("more is too much", large_disk((512, 512)), several(100, 50), less(128)),
        ("of few attempts", large_disk((512, 512)), several(100, 7), None),
        ("of just enough", large_disk((512, 512)), several(100, 8), less(128)),
        ("too little is won", large_disk((64, 512)), several(10, 50), None),
        ("nothing was held", large_disk((512, 512)), several(0, 50), less(16)),
        ("one says enough", large_disk((128, 512)), held(&[200]), more(REQUEST_MEMORY, 208)),
        ("not past the limit", large_disk((128, 200)), held(&[199]), more(REQUEST_MEMORY, 200)),
        ("the limit is the request", large_disk((128, 128)), held(&[129]), None),
        // Files of a small disk are in memory and kept for.
        ("within both", files((128, 512), (128, 256)), held(&[256]), None),
        ("past both", files((128, 512), (128, 256)), held(&[300]), more(REQUEST_MEMORY, 176)),
        ("files past what is asked", files((128, 128), (16, 256)), held(&[300]), more(REQUEST_DISK, 176)),
        ("too much beside files", files((512, 512), (256, 256)), several(100, 50), less(128)),
    ] {
        let advice = advise(&asked, &held).map(|a| (a.code, a.field, a.suggested.0 / MIB));
        assert_eq!(advice, expected, "{name}");
    }
}

#[test]
fn a_step_that_shares_its_sandbox_with_a_larger_one_is_left_alone() {
    let (own, other) = (resources((512, 512), (1024, 1024)), resources((1024, 1024), (1024, 1024)));
    let asked = Asked { own, sandbox: own.max(&other) };
    assert_eq!(advise(&asked, &held(&[100; 50])), None);
    assert_eq!(advise(&asked, &held(&[600])), None, "as much is kept for the other");
    assert!(advise(&Asked { own: other, sandbox: own.max(&other) }, &held(&[100; 50])).is_some());
}

#[test]
fn a_large_one_among_many_is_told_and_keeps_its_room() {
    let asked = alone(resources((512, 512), (1024, 1024)));
    let mut held = held(&[80; 127]);
    held.observe(Bytes(84 * MIB), Some(Bytes(90 * MIB)));
    assert_eq!(
        told(Some(&asked), &held).unwrap(),
        "asks 512Mi, held at most 84Mi, p95 84Mi over 128 attempts",
        "both are in one bucket"
    );
    held.observe(Bytes(400 * MIB), None);
    assert_eq!(
        told(Some(&asked), &held).unwrap(),
        "asks 512Mi, held at most 400Mi, p95 84Mi over 129 attempts"
    );
    assert_eq!(advise(&asked, &held), None, "who asked for less would be told to ask for more");
}

#[test]
fn what_is_asked_is_told_with_what_counts_as_memory() {
    let one = held(&[3]);
    let asked = alone(Resources::default());
    assert_eq!(
        told(Some(&asked), &one).unwrap(),
        "asks 512Mi and 256Mi for files in memory, held at most 3Mi, p95 3Mi over 1 attempt"
    );
    assert_eq!(told(None, &one).unwrap(), "asks what its row says, held at most 3Mi, p95 3Mi over 1 attempt");
}

/// Sizes of all magnitudes, and many of one.
fn sizes() -> impl Strategy<Value = Vec<u64>> {
    let size = (0u32..64, any::<u64>()).prop_map(|(shift, bits)| bits >> shift);
    let near = (0u64..200).prop_map(|part| 100 * MIB + part * MIB / 2);
    prop::collection::vec(prop_oneof![size, near], 1..300)
}

proptest! {
    #[test]
    fn the_percentile_is_that_of_a_sorted_list_or_less_than_a_quarter_more(mut sizes in sizes()) {
        let mut held = HeldMemory::default();
        sizes.iter().for_each(|&size| held.observe(Bytes(size), Some(Bytes(size / 2))));
        sizes.sort_unstable();
        let rank = (sizes.len() * 95).div_ceil(100);
        let exact = sizes[rank - 1];
        let p95 = held.p95().unwrap().0;
        prop_assert!(p95 >= exact, "{p95} < {exact}");
        prop_assert!(p95 == exact || u128::from(p95) * 4 < u128::from(exact) * 5, "{p95} for {exact}");
        prop_assert!(sizes.contains(&p95), "{p95} was never held");
        prop_assert_eq!(held.attempts(), sizes.len() as u64);
        prop_assert_eq!(held.most(), sizes.last().copied().map(Bytes));
        prop_assert_eq!(held.kernel_peak(), sizes.last().map(|most| Bytes(most / 2)));
        prop_assert!(held.buckets().count() <= BUCKETS_MAX as usize);
    }

    #[test]
    fn a_larger_size_is_in_no_smaller_bucket(a in any::<u64>(), b in any::<u64>()) {
        let (less, more) = (a.min(b), a.max(b));
        prop_assert!(Bucket::of(Bytes(less)) <= Bucket::of(Bytes(more)));
        let index = Bucket::of(Bytes(more)).index();
        prop_assert_eq!(Bucket::from_index(index.into()), Some(Bucket::of(Bytes(more))));
    }

    #[test]
    fn parts_in_any_order_are_the_whole(sizes in sizes(), cut in any::<prop::sample::Index>()) {
        let of = |sizes: &[u64]| {
            let mut held = HeldMemory::default();
            sizes.iter().for_each(|&size| held.observe(Bytes(size), None));
            held
        };
        let (first, second) = sizes.split_at(cut.index(sizes.len()));
        let mut merged = of(second);
        merged.merge(&of(first));
        prop_assert_eq!(merged, of(&sizes));
    }

    #[test]
    fn advice_can_be_followed_and_is_then_no_longer_given(
        memory in 0u64..4096, memory_more in 0u64..4096, disk in 0u64..512, disk_more in 0u64..512,
        // Many small ones and a few large.
        sizes in prop::collection::vec(prop_oneof![12 => 0u64..200, 1 => 0u64..5000], 1..200)
    ) {
        let asked = alone(resources((memory, memory + memory_more + 1), (disk, disk + disk_more + 1)));
        let held = held(&sizes);
        if let Some(advice) = advise(&asked, &held) {
            let mut own = asked.own;
            match advice.field {
                REQUEST_MEMORY => own.request.memory = advice.suggested,
                _ => own.request.disk = advice.suggested,
            }
            prop_assert!(own.request.memory <= own.limit.memory, "{advice:?}");
            prop_assert!(own.request.disk <= own.limit.disk, "{advice:?}");
            let again = advise(&alone(own), &held);
            prop_assert!(again.is_none_or(|again| again.field != advice.field), "{advice:?}, then {again:?}");
            let back = again.is_some_and(|again| again.code != advice.code);
            prop_assert!(!back, "{advice:?}, then {again:?}");
        }
    }
}
