# The two ends of tests/c, in Perl: its I/O layers, sysread and select.
use strict;
use warnings;
use IO::Socket::INET;
use IO::Select;

my ($role, $part, $warm, $port) = @ARGV;
my $total = 2_000_000;

sub pattern {
    my ($seed, $at, $n) = @_;
    my $block = join '', map { chr(($_ * 7 + $seed * 13) & 255) } 0 .. 250;
    my $skip = $at % 251;
    return substr($block x (2 + $n / 251), $skip, $n);
}

sub put_all {
    my ($s, $seed) = @_;
    for (my $at = 0; $at < $total;) {
        my $n = 1 + ($at * 31 + 17) % 9000;
        $n = $total - $at if $n > $total - $at;
        my $data = pattern($seed, $at, $n);
        my $put = syswrite($s, $data) // die "write: $!";
        $at += $put;
    }
}

sub get_all {
    my ($s, $seed) = @_;
    my $select = IO::Select->new($s);
    for (my $at = 0; $at < $total;) {
        die "select" unless $select->can_read(100);
        my $want = 1 + ($at * 13 + 5) % 12000;
        $want = $total - $at if $want > $total - $at;
        my $n = sysread($s, my $data, $want);
        die "read: $!" unless defined $n;
        die "end at $at" unless $n;
        die "wrong byte near $at" if $data ne pattern($seed, $at, $n);
        $at += $n;
    }
}

sub lines {
    my ($s, $asks) = @_;
    $s->autoflush(1);
    for my $i (1 .. 500) {
        if ($asks) {
            print $s "ask $i\n";
            my $answer = <$s>;
            die "answer" unless $answer eq "answer $i\n";
        } else {
            my $question = <$s>;
            die "question" unless $question eq "ask $i\n";
            print $s "answer $i\n";
        }
    }
}

my $s;
if ($role eq 'server') {
    my $l = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1', Proto => 'tcp') or die;
    $| = 1;
    print "port ", $l->sockport, "\n";
    $s = $l->accept or die;
    lines($s, 0);
    get_all($s, 1);
    put_all($s, 2);
} else {
    $s = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Proto => 'tcp') or die;
    lines($s, 1);
    put_all($s, 1);
    get_all($s, 2);
}
shutdown($s, 1);
my $left = sysread($s, my $rest, 100);
print "then $left\n";
