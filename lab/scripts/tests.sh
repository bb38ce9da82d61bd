# Runs test programs, all of them; fails if one does.
status=0
for program; do
    "$program" --test-threads="${LAB_THREADS:-2}" || status=$?
done
exit $status
