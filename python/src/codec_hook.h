// DistributedDataParallel's gradients through weft's codecs (weft/compress): the C++ side of a
// communication hook.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/compress/reducer.h"

namespace weft::python {

// One bucket of gradients, as DDP hands it over.
struct Bucket {
  int index = 0;
  at::Tensor values;                  // float32, contiguous; becomes the average
  std::vector<at::Tensor> gradients;  // views into `values`, one a parameter
};

// A thread of its own encodes, exchanges and decodes the buckets in their order, so that backward
// goes on. `backend` is used by this hook only: its collectives come in this thread's order.
//
// A bucket's first average is exact: DDP regroups its buckets after the first step, and what a
// codec remembers belongs to a bucket.
class CodecHook {
 public:
  // What a bucket's codec remembers of this rank's gradients: enough to go on as if nothing had
  // been in between.
  struct Saved {
    std::int64_t step = 0;  // averages so far
    std::int64_t count = 0;
    std::vector<at::Tensor> memory;
  };
  using State = std::map<int, Saved>;

  // Throws kInvalidArgument for a spec that compress::parse() does not take, and for "auto".
  CodecHook(c10::intrusive_ptr<c10d::Backend> backend, const std::string& spec);
  // Ends when the buckets handed over are done.
  ~CodecHook();
  CodecHook(const CodecHook&) = delete;
  CodecHook& operator=(const CodecHook&) = delete;

  // The spec in full.
  std::string spec() const { return compress::to_string(spec_); }
  // Its future is completed with the averaged values, or with the error. Throws kInvalidArgument
  // where they are not of float32.
  c10::intrusive_ptr<c10d::Work> average(Bucket bucket);

  // By bucket. What was loaded is taken up at each bucket's second average, which throws
  // kInvalidArgument where it does not fit. Not while a step is under way.
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
  void exchange(const compress::Round& round);

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const compress::Spec spec_;

  mutable std::mutex mutex_;  // guards the four below
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;

  // These two: the thread's while a step is under way, else the caller's.
  std::map<int, Unit> units_;
  State loaded_;
  std::thread thread_;
};

}  // namespace weft::python
