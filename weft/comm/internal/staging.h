// Copies tensors of an accelerator to host memory and back, since the weft backend moves host
// memory only.
//
// An operation on its caller's thread copies in the caller's stream. An operation on a thread of
// weft must first wait for the work that the caller's stream had at the call. The call records this
// point of the stream (Moment). The thread waits for it and copies in its own stream
// (Moment::Scope). The caller's stream does not wait. So at its end the operation waits for its own
// copies: those within the device go on after the call that starts them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>
#include <vector>

namespace weft::comm::internal {

class Moment {
 public:
  // Of the streams of the caller's thread, for the devices of these tensors. Nothing to wait for if
  // all are in host memory.
  static Moment now(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& results);

  // While it lives, this thread copies in streams of its own, after the moment. Waits for it.
  class Scope {
   public:
    explicit Scope(const Moment& moment);  // `moment` must outlive it
    // Returns when the copies of this thread are complete.
    void finish() const;

   private:
    const Moment& moment_;
    std::optional<c10::MultiStreamGuard> streams_;
  };

 private:
  std::vector<std::shared_ptr<c10::Event>> events_;  // one for each device
  std::vector<c10::Stream> own_;                     // by event
};

// A contiguous, pinned copy of `tensor` in host memory.
at::Tensor to_host(const at::Tensor& tensor);
// Memory for it, without its values.
at::Tensor host_memory_for(const at::Tensor& tensor);

}  // namespace weft::comm::internal
