# Runs test programs, all of them; fails if one does. LAB_TESTS, if set, are the only tests to run.
# What it says of a program is what cargo would say, so that both are read alike.
status=0
for program; do
    printf '     Running %s (%s)\n' "${program##*/}" "$program"
    # A name of a test is one word.
    "$program" --test-threads="${LAB_THREADS:-2}" ${LAB_TESTS:+--exact $LAB_TESTS} || {
        status=$?
        printf 'error: test failed, to rerun pass `%s`\n' "${program##*/}"
    }
done
exit $status
