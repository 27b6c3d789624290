//! Terms of disks and CPUs as they are written.

use bonsai_units::{Change, CpuTerms, DiskTerms, Quota, Reserve};
use proptest::prelude::*;

fn disk(words: &[&str]) -> DiskTerms {
    DiskTerms::parse(words.iter().copied()).expect("terms")
}

#[test]
fn the_unit_says_whether_bytes_or_calls_of_a_disk_are_meant() {
    let terms = disk(&["read=50MB/s", "write=1000/s", "write=1MiB/s"]);
    let expected = DiskTerms {
        read_bytes: Change::To(50_000_000),
        write_bytes: Change::To(1 << 20),
        read_calls: Change::Keep,
        write_calls: Change::To(1_000),
    };
    assert_eq!(terms, expected);
    assert_eq!(terms.to_string(), "read=50MB/s write=1MiB/s write=1000/s");
    let terms = disk(&["read=1000/s", "read=unlimited"]);
    assert_eq!(terms.read_bytes, Change::Clear);
    assert_eq!(terms.read_calls, Change::To(1_000));
    assert_eq!(terms.write_bytes, Change::Keep);
}

#[test]
fn words_that_say_nothing_of_a_disk_are_refused_in_one_sentence() {
    for (words, hint) in [
        (&[][..], "nothing is to be set"),
        (&["read"], "has no ="),
        (&["send=1MB/s"], "nothing that a disk does"),
        (&["read=0MB/s"], "is zero"),
        (&["read=1kB/s"], "the least is 4096B/s"),
        (&["write=0.5/s"], "the least is 1/s"),
        (&["write=1.5/s"], "whole bytes and calls"),
        (&["write=4294967295/s"], "the most is 4294967294/s"),
        (&["read=50"], "has no unit"),
        (&["read=fast"], "neither a rate nor unlimited"),
        (&["read="], "the value is empty"),
        (&["read=5MB/s:burst=1MB"], "write the rate alone"),
        (&["read=5MB/s", "read=6MB/s"], "twice in bytes"),
    ] {
        let error = DiskTerms::parse(words.iter().copied()).expect_err("refused");
        let text = error.to_string();
        assert!(text.contains(hint) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn what_a_service_has_of_the_cpus_is_read_and_printed() {
    let terms: CpuTerms = "weight=200,quota=150%,reserve=1.9ms/10ms"
        .parse()
        .expect("terms");
    let quota = Quota {
        runtime_us: 150_000,
        period_us: 100_000,
    };
    let reserve = Reserve {
        runtime_ns: 1_900_000,
        period_ns: 10_000_000,
    };
    assert_eq!(terms.weight, Change::To(200));
    assert_eq!(terms.quota, Change::To(quota));
    assert_eq!(terms.reserve, Change::To(reserve));
    assert_eq!(
        terms.to_string(),
        "weight=200,quota=150%,reserve=1.9ms/10ms"
    );
    let terms: CpuTerms = "quota=15ms/10ms".parse().expect("terms");
    assert_eq!(terms.to_string(), "quota=15ms/10ms");
    let small: Quota = "0.5%".parse().expect("a quota");
    assert_eq!((small.runtime_us, small.period_us), (5_000, 1_000_000));
    let away: CpuTerms = "quota=unlimited, reserve=none".parse().expect("terms");
    assert_eq!((away.quota, away.reserve), (Change::Clear, Change::Clear));
    assert!(away.weight.is_keep() && !away.is_empty());
}

#[test]
fn parts_that_say_nothing_of_a_cpu_are_refused_in_one_sentence() {
    for (text, hint) in [
        ("", "nothing is to be set"),
        ("weight", "nothing that there is of a CPU"),
        ("wieght=3", "nothing that there is of a CPU"),
        ("weight=0", "from 1 to 10000"),
        ("weight=10001", "from 1 to 10000"),
        ("weight=2.5", "from 1 to 10000"),
        ("weight=1,weight=2", "weight is given twice"),
        ("quota=0%", "is zero"),
        ("quota=0.01%", "the least is 0.1%"),
        ("quota=150", "has no unit"),
        ("quota=1ms", "150% or 15ms/10ms"),
        ("quota=0.5ms/10ms", "the time is out of range"),
        ("quota=5ms/2s", "the period is out of range"),
        ("quota=1.0001ms/10ms", "whole microseconds"),
        ("reserve=2ms", "it has no period"),
        ("reserve=20%", "it has no period"),
        ("reserve=11ms/10ms", "more time than there is"),
        ("reserve=1us/10ms", "the time is out of range"),
        ("reserve=1us/10us", "the period is out of range"),
    ] {
        let error = text.parse::<CpuTerms>().expect_err(text);
        let text = error.to_string();
        assert!(text.contains(hint) && !text.contains('\n'), "{text}");
    }
}

proptest! {
    #[test]
    fn terms_are_read_back_as_printed(
        weight in 1_u64..=10_000,
        runtime_us in 1_000_u64..100_000_000,
        period_us in prop_oneof![Just(100_000_u64), Just(1_000_000), 1_000_u64..=1_000_000],
        period_ns in 100_000_u64..=4_000_000_000,
        part in 1_u64..=1_000,
    ) {
        let runtime_ns = (period_ns / 1_000 * part).clamp(1_024, period_ns);
        let terms = CpuTerms {
            weight: Change::To(weight),
            quota: Change::To(Quota { runtime_us, period_us }),
            reserve: Change::To(Reserve { runtime_ns, period_ns }),
        };
        prop_assert_eq!(terms.to_string().parse(), Ok(terms));
    }

    #[test]
    fn any_text_is_read_or_refused_in_one_line(text in "\\PC{0,40}") {
        for answer in [
            text.parse::<CpuTerms>().map_err(|error| error.to_string()).err(),
            DiskTerms::parse([text.as_str()]).map_err(|error| error.to_string()).err(),
        ].into_iter().flatten() {
            prop_assert!(!answer.contains('\n'), "{}", answer);
        }
    }
}
