export * from "onnxruntime-web/webgpu";
