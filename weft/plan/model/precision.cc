#include <algorithm>
#include <cctype>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/plan/model/blocks.h"
#include "weft/plan/model/profile.h"

namespace weft::plan {

const char* to_string(Precision precision) {
  switch (precision) {
    case Precision::kFp32: return "fp32";
    case Precision::kTf32: return "tf32";
    case Precision::kFp16: return "fp16";
    case Precision::kBf16: return "bf16";
    case Precision::kFp8: return "fp8";
    case Precision::kFp4: return "fp4";
  }
  return "fp32";
}

Precision parse_precision(std::string_view name) {
  std::string key;
  for (const char c : name) key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto has = [&](const char* part) { return key.find(part) != std::string::npos; };
  if (has("fp4") || has("float4")) return Precision::kFp4;
  if (has("fp8") || has("float8") || has("f8")) return Precision::kFp8;
  if (has("tf32")) return Precision::kTf32;
  if (has("bf16") || has("bfloat16")) return Precision::kBf16;
  if (has("fp16") || has("float16") || has("half") || has("amp") || has("mixed") || key == "f16")
    return Precision::kFp16;
  if (has("fp32") || has("float32") || has("single") || key == "f32" || key == "float")
    return Precision::kFp32;
  const auto near = nearest(key, {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"});
  throw Error(
      Errc::kInvalidArgument,
      "precision \"" + std::string(name.substr(0, 40)) + "\" is not known; " +
          (near ? "did you mean " + *near + "?" : "use fp32, tf32, fp16, bf16, fp8 or fp4"));
}

double element_bytes(Precision precision) {
  return precision == Precision::kFp32 || precision == Precision::kTf32 ? 4 : 2;
}

double forward_flops(const Operator& op) {
  if (op.kind == OperatorKind::kMemory) return 0;
  if (op.kind == OperatorKind::kMeasured) return op.measured_flops;
  const double products = static_cast<double>(op.batch) * static_cast<double>(op.m) *
                          static_cast<double>(op.n) * static_cast<double>(op.k);
  return (op.kind == OperatorKind::kAttention ? 4 : 2) * products;
}

Blocks blocks_of(const Model& model, const Split& split) {
  const Model m = complete(model);
  WEFT_REQUIRE(split.micro_batch > 0 && split.tp >= 1 && split.cp >= 1 && split.ep >= 1,
               "the micro-batch, tp, cp and ep must be positive");
  WEFT_REQUIRE(m.only_parameters <= 0,
               "a model of which only the number of parameters is known has no blocks");
  if (m.family == Family::kMeasured) return measured_blocks(*m.profile, split);
  return is_transformer(m) ? transformer_blocks(m, split) : convolution_blocks(m, split);
}

}  // namespace weft::plan
