#include "weft/comm/allocator.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <stdlib.h>  // __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>

#include "weft/net/memory/heap.h"

namespace weft::comm {
namespace {

net::Heap* heap = nullptr;

void release(void* pointer) {
  if (heap->contains(pointer)) {
    heap->deallocate(pointer);
  } else {
    c10::free_cpu(pointer);
  }
}

class SharedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release_nothing, cpu};
    void* block = heap->allocate(bytes);
    if (block == nullptr) block = c10::alloc_cpu(bytes);
    return {block, block, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const final {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release_nothing(void*) {}
};

}  // namespace

bool install_allocator() {
  if (heap != nullptr) return true;
  net::Heap* made = net::process_heap();
  if (made == nullptr) return false;
  heap = made;
  net::copy_heap_on_fork();
  static auto* const allocator = new SharedAllocator;
  c10::SetCPUAllocator(allocator, 100);
  return true;
}

bool allocator_installed() { return heap != nullptr; }

void release_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
  net::release_left_groups();
  if (heap != nullptr) heap->trim();
}

at::Tensor readable(net::Host& host, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  if (host.token(dense.data_ptr()) != net::Host::kNoToken) return dense;
  std::byte* const block = host.allocate(std::max<std::size_t>(1, dense.nbytes()));
  at::Tensor copy = at::from_blob(
      block, dense.sizes(), [&host, block](void*) { host.deallocate(block); }, dense.options());
  return copy.copy_(dense);
}

}  // namespace weft::comm
