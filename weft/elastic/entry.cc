#include "weft/elastic/entry.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "weft/base/json/json_writer.h"

namespace weft::elastic {
namespace {

using checkpoint::Slices;
using checkpoint::whole_slice;

Slices tensors_of(const torch::nn::Module& module) {
  Slices tensors;
  for (const auto& item : module.named_parameters())
    tensors.push_back(whole_slice(item.key(), item.value().detach()));
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) tensors.push_back(whole_slice(item.key(), item.value().detach()));
  }
  return tensors;
}

}  // namespace

std::string in_decimal(const std::string& text) {
  if (text.find('p') == std::string::npos) return text;
  const auto number = value_of<double>(text);
  // Names such as "ap50" are hexadecimal numbers too, but text_of() writes none so.
  return number && text_of(*number) == text ? json_number(*number) : text;
}

const std::string& text_at(const Texts& texts, const std::string& key) {
  const auto found = texts.find(key);
  if (found == texts.end())
    throw Error(Errc::kCorrupt, "the saved state has no text \"" + key + "\"");
  return found->second;
}

Entry entry_of(torch::nn::Module& module) {
  return {.object = &module,
          .save = [&module] { return Values{.equal = tensors_of(module)}; },
          .load = [&module](const Loading& from) { from.tensors.fill(tensors_of(module)); },
          .outline = [&module] { return checkpoint::outline(tensors_of(module)); }};
}

Entry entry_of(at::Tensor& tensor) {
  const auto whole = [&tensor] { return Slices{whole_slice("tensor", tensor.detach())}; };
  return {.object = &tensor,
          .save = [whole] { return Values{.equal = whole()}; },
          .load = [whole](const Loading& from) { from.tensors.fill(whole()); },
          .outline = [whole] { return checkpoint::outline(whole()); }};
}

Entry entry_of(std::string& text) {
  return {.object = &text,
          .save =
              [&text] {
                return Values{.texts = {{"", text}}};
              },
          .load = [&text](const Loading& from) { text = text_at(from.texts, ""); }};
}

}  // namespace weft::elastic
