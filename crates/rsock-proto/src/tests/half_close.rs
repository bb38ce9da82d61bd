//! Closes in each order, between two ends of this crate and between one and C.

use crate::sim::{EndConfig, Op, Pair, Side};

const RSOCK: EndConfig = EndConfig::Rsock {
    buf_len: 1000,
    n_bufs: 4,
    window: 16,
    first_len: 100,
    n_slots: 2,
    max_message: 300,
};
const C: EndConfig = EndConfig::C { half_len: 1000, rq_size: 16, foreign: false };

fn pairs() -> [Pair; 3] {
    [[RSOCK, RSOCK], [RSOCK, C], [C, RSOCK]].map(Pair::new)
}

fn run(pair: &mut Pair, ops: &[Op]) {
    for op in ops {
        pair.apply(*op);
    }
}

#[test]
fn one_direction_ends_and_the_other_goes_on() {
    for mut pair in pairs() {
        run(&mut pair, &[Op::Write(Side::A, 5000), Op::Drive, Op::ShutWr(Side::A), Op::Drive]);
        assert!(!pair.is_over(Side::A) && !pair.is_over(Side::B));
        run(&mut pair, &[Op::Write(Side::B, 16_000), Op::Drive]);
        assert_eq!(pair.total_read(Side::A), 16_000);
        run(&mut pair, &[Op::ShutWr(Side::B), Op::Drive]);
        assert!(pair.is_over(Side::A));
    }
}

#[test]
fn bytes_before_a_close_arrive() {
    for mut pair in pairs() {
        run(&mut pair, &[Op::Write(Side::A, 700), Op::Close(Side::A), Op::Drive]);
        assert!(pair.is_over(Side::B));
        // As much as was sent; the rest never left.
        assert!(pair.total_read(Side::B) > 0);
        run(&mut pair, &[Op::Write(Side::B, 10), Op::Drive]);
        assert_eq!(pair.total_read(Side::A), 0);
    }
}

#[test]
fn both_ends_may_shut_down_at_once() {
    let ends = [Op::ShutWr, Op::ShutRd, Op::Close];
    for a in ends {
        for b in ends {
            for mut pair in pairs() {
                run(&mut pair, &[Op::Write(Side::A, 90), Op::Write(Side::B, 90)]);
                run(&mut pair, &[a(Side::A), b(Side::B), Op::Drive]);
                assert_eq!((pair.total_read(Side::A), pair.total_read(Side::B)), (90, 90));
            }
        }
    }
}

#[test]
fn ends_in_each_order_leave_both_sides_over() {
    let steps: [fn(Side) -> Op; 2] = [Op::ShutWr, Op::ShutRd];
    for first in steps {
        for second in steps {
            for mut pair in pairs() {
                run(&mut pair, &[first(Side::A), Op::Drive, second(Side::B), Op::Drive]);
                run(&mut pair, &[Op::Close(Side::A), Op::Drive, Op::Close(Side::B), Op::Drive]);
                assert!(pair.is_over(Side::A) && pair.is_over(Side::B));
            }
        }
    }
}
