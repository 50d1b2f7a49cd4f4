// Tensors without values explain themselves (parameter_cuts.h).
//
// libtorch's error about missing memory does not say what to do. So these tensors have one more
// dispatch key. An operation on them comes here first. It is passed on, and if it fails, the error
// is the tensor's own text.
#include <ATen/ATen.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/engine/parameter_cuts.h"

namespace weft::engine {
namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;  // libtorch never uses it

// data() copies it with the tensor. Views have the key only.
struct Text : c10::BackendMeta {
  Text(std::string text, bool never) : why(std::move(text)), never_has(never) {}
  const std::string why;
  const bool never_has;  // the tensor never gets memory
};
constexpr const char* kViewText =
    "a view of a parameter or gradient has no values here, since they are divided over the ranks; "
    "clone() it while the block runs, or call state() or gradients() of the parallel model";

struct Keys : c10::TensorImpl {
  static c10::DispatchKeySet& of(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->*(&Keys::key_set_);
  }
};

const Text* text_at(const at::Tensor& tensor) {
  return dynamic_cast<const Text*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

std::string text_of(const at::Tensor& tensor) {
  const Text* const text = text_at(tensor);
  return text != nullptr ? text->why : kViewText;
}

void guard(const at::Storage& memory, const std::string& why) {
  memory.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}

// Tensors among the arguments of an operation that have no values. An access to their memory
// throws; libtorch would follow a null pointer.
class Missing {
 public:
  void look(const at::Tensor& tensor) {
    if (!tensor.defined() || !Keys::of(tensor).has(kKey) || !tensor.has_storage()) return;
    if (tensor.storage().nbytes() == 0 && tensor.numel() > 0) all_.push_back(tensor);
  }
  void look(const c10::IValue& argument) {
    if (argument.isTensor()) return look(argument.toTensor());
    if (!argument.isTensorList()) return;
    for (const at::Tensor& tensor : argument.toTensorVector()) look(tensor);
  }
  bool any() const { return !all_.empty(); }
  const std::vector<at::Tensor>& all() const { return all_; }
  std::string why() const { return text_of(all_[0]); }
  // Their parameters may have one memory, so the text that it throws is another one's.
  void name() const {
    for (const at::Tensor& tensor : all_) guard(tensor.storage(), text_of(tensor));
  }

 private:
  std::vector<at::Tensor> all_;
};

// Lets an operation that gives tensors other memory look at that of now.
class Lifted {
 public:
  explicit Lifted(const Missing& missing) {
    for (const at::Tensor& tensor : missing.all()) {
      const Text* const text = text_at(tensor);
      if (text != nullptr && text->never_has) continue;
      memory_.emplace_back(tensor.storage(), text_of(tensor));
      tensor.storage().unsafeGetStorageImpl()->clear_data_ptr_access_error_msg_();
    }
  }
  ~Lifted() {
    for (const auto& [memory, text] : memory_) guard(memory, text);
  }
  Lifted(const Lifted&) = delete;
  Lifted& operator=(const Lifted&) = delete;

 private:
  std::vector<std::pair<at::Storage, std::string>> memory_;
};

void explain(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  Missing missing;
  for (const c10::IValue& argument :
       torch::jit::last(*stack, operation.schema().arguments().size()))
    missing.look(argument);
  std::optional<Lifted> lifted;
  operation.schema().name() == "aten::set_" ? static_cast<void>(lifted.emplace(missing))
                                            : missing.name();
  try {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    operation.callBoxed(stack);
  } catch (const c10::Error&) {
    if (!missing.any()) throw;
    throw Error(Errc::kInvalidArgument, missing.why());
  }
}

// False if another copy of this library in the process has registered it.
const bool is_registered = [] {
  try {
    static torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&explain>());
    return true;
  } catch (const c10::Error&) {  // the other copy does the same
    return false;
  }
}();

}  // namespace

void refuse(const at::Tensor& tensor, const std::string& why) {
  tensor.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<Text>(why, false));
  refuse(tensor);
}

// torch::save() reads the memory without an operation. It would write a file without the values.
void refuse(const at::Tensor& tensor) {
  c10::DispatchKeySet& keys = Keys::of(tensor);
  if (is_registered) keys = keys.add(kKey);
  if (tensor.storage().nbytes() == 0) guard(tensor.storage(), text_of(tensor));
}

// Views that are taken now have the key too, and refuse when the memory is gone.
void admit(const at::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->clear_data_ptr_access_error_msg_();
}

void accept(const at::Tensor& tensor) {
  admit(tensor);
  c10::DispatchKeySet& keys = Keys::of(tensor);
  keys = keys.remove(kKey);
}

at::Tensor refusing(const at::Tensor& like, const std::string& why) {
  at::Tensor tensor = at::empty(like.sizes(), like.options().requires_grad(false));
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, like.device()));
  storage->set_nbytes(0);
  guard(tensor.storage(), why);
  tensor.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<Text>(why, true));
  refuse(tensor);
  return tensor;
}

}  // namespace weft::engine
