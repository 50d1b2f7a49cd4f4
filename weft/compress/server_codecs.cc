#include "weft/compress/server_codecs.h"

#include "weft/base/error.h"
#include "weft/compress/spec.h"

namespace weft::compress {

void check_push_codec(const std::string& text) {
  const Spec push = parse(text);
  WEFT_REQUIRE(push.kind != Kind::kPowerSgd && push.kind != Kind::kAuto &&
                   push.memory != Memory::kDelta && push.warmup == 0,
               "push_codec = \"" + text +
                   "\" is not supported by the parameter server; use bf16, f16, int8, int4, sign, "
                   "topk, randomk or threshold, without delta and warmup");
}

void check_difference_codec(const std::string& text) {
  const Spec spec = parse(text);
  const bool whole = spec.kind == Kind::kPowerSgd || spec.kind == Kind::kAuto ||
                     spec.memory == Memory::kDelta || spec.warmup > 0;
  // Scaled up, it would overshoot.
  const bool scaled = spec.kind == Kind::kRandomK && spec.memory == Memory::kNone;
  WEFT_REQUIRE(!whole && !scaled,
               "pull_codec = \"" + text +
                   "\" is not supported with pull_deltas; use none, bf16, f16, int8, int4, sign, "
                   "topk, randomk or threshold, without delta, warmup and ef=off");
}

}  // namespace weft::compress
