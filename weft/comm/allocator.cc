#include "weft/comm/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

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
  void copy_data(void* to, const void* from, std::size_t bytes) const final { std::memcpy(to, from, bytes); }

 private:
  static void release_nothing(void*) {}
};

}  // namespace

bool install_allocator() {
  if (heap != nullptr) return true;
  net::Heap* made = net::process_heap();
  if (made == nullptr) return false;
  heap = made;
  static auto* const allocator = new SharedAllocator;
  c10::SetCPUAllocator(allocator, 100);
  return true;
}

bool allocator_installed() { return heap != nullptr; }

}  // namespace weft::comm
