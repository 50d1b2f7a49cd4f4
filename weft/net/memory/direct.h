// Collectives in shared memory (algorithm "direct" of weft/schedule): every rank reads its peers'
// data in place.
//
// Up to kInline bytes, an all-reduce needs one barrier: each rank writes to its slot, reads the
// others' slots and reduces all of them. If peers can read the arrays, larger all-reduces work by
// shards: each rank reduces its shard of all inputs and writes it into all outputs (two barriers,
// no copy). Otherwise the ranks copy through staging memory that stays in the cache, or the kernel
// copies from the peers' arrays (internal/direct_ordinary.cc).
//
// Each operation has a signature: if ranks call different operations, all throw kInvalidArgument
// with both signatures, and the group ends. Results have the same bits on every rank. The caller
// serializes operations. Input and output may be the same array. `timeout` limits each wait for a
// peer, not the whole operation.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/net/memory/host.h"
#include "weft/schedule/schedule.h"

namespace weft::net {

namespace internal {
class Staging;
}

// Properties of a call on which two ranks must agree, and the caller's shape, which is for errors:
// shapes may differ, as over MPI and Gloo, if they have the same number of elements.
struct Signature {
  std::uint8_t operation = 0;  // a schedule::Collective
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  // The lower 3 bits are the dimensions of `shape`, or kMoreDims, or kParts. The others are
  // DirectArgs::width.
  std::uint8_t form = 0;
  std::int32_t root = 0;   // of calls without a root: DirectArgs::more
  std::int64_t count = 0;  // values of `dtype` that are transferred
  std::int32_t shape[4] = {};

  static constexpr int kMoreDims = 5, kParts = 6;
  int dims() const { return form & 7; }
  int width() const { return form >> 3; }
  // This signature without the shape.
  Signature compared() const;
  bool operator==(const Signature& other) const;
  // "all_reduce(sum, float32[3, 4])".
  std::string text() const;
};

// DirectArgs::dims of an all-to-all to which each rank gives the sizes of its parts. It has a count
// of 0: the ranks agree on the call, and move the parts by messages.
constexpr int kPartSizes = 254;

struct DirectArgs {
  const void* input = nullptr;
  void* output = nullptr;
  // Number of elements, as in schedule::Request: of the smaller array for all-gather,
  // reduce-scatter, gather and scatter; of a block for all-to-all.
  std::int64_t count = 0;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);
  // The caller's shape for error messages. None: [count].
  const std::int64_t* shape = nullptr;
  int dims = 0;
  // The rest is for the signature.
  bool is_half = false;  // The caller's elements are float16, and these are a float32 copy.
  int width = 1;  // Values of `dtype` in one of the caller's elements: 2 for complex numbers.
  int more = 0;   // Number of tensors that follow in the same call of the caller.
};

// The signature of a call, and the error of two ranks with different calls.
Signature signature_of(schedule::Collective operation, const DirectArgs& args);
Error mismatch_error(int rank, const Signature& mine, int peer, const Signature& other);

class Direct {
 public:
  // Collective: allocates the slots. `host` outlives it.
  Direct(Host& host, std::chrono::nanoseconds timeout);
  ~Direct();
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;

  void all_reduce(const DirectArgs& args);
  void reduce_scatter(const DirectArgs& args);
  void all_gather(const DirectArgs& args);
  void broadcast(const DirectArgs& args);
  void reduce(const DirectArgs& args);
  void gather(const DirectArgs& args);
  void scatter(const DirectArgs& args);
  void all_to_all(const DirectArgs& args);
  void barrier(const DirectArgs& args);

  // Bytes of the other ranks' data that this rank has read or written. Any thread may call it.
  std::uint64_t moved_bytes() const { return moved_.value(); }

  static constexpr std::size_t kInline = 4096;  // bytes of a slot

 private:
  struct Slot;

  Slot& slot(int rank) const;
  internal::Staging& staging();
  void arrive();
  void meet();
  void open(const DirectArgs& args, schedule::Collective operation, std::int64_t inline_bytes);
  [[noreturn]] void mismatch(int peer);
  // Counts `bytes` for each of the other ranks.
  void count_each(std::int64_t bytes) {
    moved_.add(static_cast<std::uint64_t>(bytes * (host_.world() - 1)));
  }
  bool readable(bool inputs, bool outputs) const;
  std::vector<const std::byte*> inputs() const;

  // use() reads or writes arrays of peers, which may be freed after the meeting.
  template <class Use>
  void touch_and_meet(Use use);
  template <class Stage, class Take>
  void pieces(std::int64_t length, std::int64_t per_piece, Stage stage, Take take);
  template <class Wanted>
  void move(const DirectArgs& args, schedule::Collective operation, bool from_root, Wanted wanted);
  void reduce_inline(const DirectArgs& args, std::int64_t first);
  void reduce_shards(const DirectArgs& args, bool to_all);
  void publish(const void* input, const void* output, std::int64_t bytes);
  template <class Staged, class Kernel>
  void copy_either_way(schedule::Collective operation, std::int64_t bytes, Staged staged,
                       Kernel by_kernel);
  void reduce_ordinary(const DirectArgs& args);
  void reduce_chunks(const DirectArgs& args);
  void reduce_pieces(const DirectArgs& args);
  void reduce_by_kernel(const DirectArgs& args);
  void spread(const DirectArgs& args);

  Host& host_;
  std::byte* slots_ = nullptr;
  std::unique_ptr<internal::Staging> staging_;  // made at first use, by the barriers below
  std::uint32_t sequence_ = 0;                  // number of barriers so far
  const char* name_ = "direct";                 // name of the current operation
  std::chrono::nanoseconds timeout_{};
  Counter moved_;
};

}  // namespace weft::net
