// What a fork means for memory that the ranks share.
#pragma once

namespace weft::python {

// From now on a child of fork() gets a copy of this process's shared heap at its place, as it gets
// copies of all other memory: neither of the two sees what the other writes. fork() returns in the
// parent when the child has its copy (about 0.3 s a GiB of tensors). Called once, after the heap
// has been made.
void copy_heap_on_fork();

}  // namespace weft::python
