// The C++ side of a communication hook that compresses the gradients of DistributedDataParallel
// with weft's codecs (weft/compress).
#pragma once

#include <ATen/core/Tensor.h>

#include <sys/types.h>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/compress/reducer.h"

namespace weft::python {

// A backend with the ranks of `parent`, which is weft's, and an order of calls of its own. They
// meet in `store`, which nothing else may use. Collective.
c10::intrusive_ptr<c10d::Backend> duplicate(const c10::intrusive_ptr<c10d::Backend>& parent,
                                            const c10::intrusive_ptr<c10d::Store>& store);

// A bucket of gradients, as DDP passes it.
struct Bucket {
  int index = 0;
  at::Tensor values;                  // float32, contiguous; becomes the average
  std::vector<at::Tensor> gradients;  // views into `values`, one a parameter
};

// Its own thread encodes, exchanges and decodes the buckets in order, while backward continues.
// Only this hook may use `backend`, since all its collectives must come from this thread.
//
// The first average of a bucket is not compressed: DDP regroups its buckets after the first step,
// and the state of a codec belongs to a bucket.
class CodecHook {
 public:
  // The state of a bucket's codec on this rank. A run that loads it continues exactly.
  struct Saved {
    std::int64_t step = 0;  // averages so far
    std::int64_t count = 0;
    std::vector<at::Tensor> memory;
  };
  using State = std::map<int, Saved>;

  // Throws Error(kInvalidArgument) for a spec that compress::parse() refuses, and for "auto".
  CodecHook(c10::intrusive_ptr<c10d::Backend> backend, const std::string& spec);
  // Waits for all buckets that were passed to average().
  ~CodecHook();
  CodecHook(const CodecHook&) = delete;
  CodecHook& operator=(const CodecHook&) = delete;

  // Returns the spec with all its options.
  std::string spec() const { return compress::to_string(spec_); }
  // Completes the future with the averaged values or with the error. Throws Error(kInvalidArgument)
  // if the values are not contiguous float32 on the CPU, and in a forked child, which has no
  // thread of the hook.
  c10::intrusive_ptr<c10d::Work> average(Bucket bucket);

  // State by bucket. A loaded state is applied at each bucket's second average. All ranks must have
  // loaded one that fits, of the same step, or none. Else that average throws
  // Error(kInvalidArgument) on all ranks, again until another state is loaded. Must not be called
  // during a step.
  State state() const;
  void load(State state);

 private:
  struct Task {
    Bucket bucket;
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };
  struct Unit {
    std::unique_ptr<compress::Reducer> reducer;  // from the second average on
    std::int64_t count = 0, step = 0;
  };
  void work();
  void reduce(const Bucket& bucket);
  void sum(const at::Tensor& values, c10d::ReduceOp op);
  Unit make_unit(const Bucket& bucket, const Unit& before);
  // Takes the saved state. Returns false, with the unit in any state, if it does not fit.
  static bool restore(const Saved& saved, Unit& unit);
  // Throws on all ranks if their units would not go on together.
  void require_alike(const Unit& unit, bool is_loaded, bool fits);
  void exchange(const compress::Round& round);

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const compress::Spec spec_;
  const pid_t process_;

  mutable std::mutex mutex_;  // guards the four below
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;

  // Used by the thread during a step, by the caller otherwise.
  std::map<int, Unit> units_;
  State loaded_;
  std::thread thread_;
};

}  // namespace weft::python
