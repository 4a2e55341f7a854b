"""Names that SGLang imports where there is no GPU. It calls none of them: its layers in torch are what runs."""

rotary_embedding = fused_add_rms_norm = rms_norm = None
